"""Drafts that branch: a tree of likely continuations, verified in one pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec_plugins.decoding.acceptance import AcceptanceRule, Accepted, Verification
from specdec_plugins.decoding.acceptance.tree_walk import walk
from specdec_plugins.decoding.drafts.growth import HostLattice, Trees, advance, grow_all, grow_some
from specdec_plugins.decoding.kernels import Floats, Ints
from specdec_plugins.models.lattice import Lattice

Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True)
class TreeDraft:
    """Drafted tokens by probability, as a tree.

    Node 0 is the root, the last committed token; node i > 0 holds drafted token i - 1. Every node's
    parent comes before it, and none is an EOS's.
    """

    tokens: Tensor
    """``(rows, nodes)``; ``pad``, which is never accepted, fills up."""
    drafted: list[int]
    called: list[bool]
    depths: Tensor
    """``(rows, nodes + 1)`` tokens from the root to each node; 0 for the root."""
    ancestors: Tensor
    """``(rows, nodes + 1, nodes + 1)`` bool: the nodes that each node comes after, and itself."""
    parents: Tensor
    """``(rows, nodes)`` parents of all nodes but the root."""
    host_parents: Ints
    host_tokens: Ints
    """``(rows, nodes)`` parents and tokens on the host."""
    gains: Floats
    """``(rows, nodes + 1)`` the drafter's log-probability of the path to each node, on the host;
    minus infinity where ``pad`` fills up."""

    @property
    def after(self) -> Tensor:
        return self.parents

    def cut(self, lengths: Tensor) -> TreeDraft:
        """Return the whole tree: its size is decided before it is grown."""
        return self

    def accept(
        self, rule: AcceptanceRule, verification: Verification, room: list[int] | None
    ) -> Accepted:
        best = rule.verifier_tokens(verification)
        good = rule.agrees(verification, best, self.tokens, self.parents)
        host = self.host_parents, self.host_tokens
        return walk(host, good, best, verification.eos, self.drafted, room)

    def parents_of(self, row: int) -> list[int]:
        parents: list[int] = self.host_parents[row].tolist()
        return parents

    def chances(self) -> list[list[float]]:
        before = np.take_along_axis(self.gains, self.host_parents, axis=1)
        chances: list[list[float]] = np.exp(self.gains[:, 1:] - before).tolist()
        return chances


class LatticeTrees:
    """A lattice on the host, and each row's position in it.

    The slots after a rejected one were drafted without knowing the tokens before them, and a
    lattice scores how well they follow the verifier's token. If that is among its slot's
    candidates, a tree can be grown from the rest without a pass of the drafter.
    """

    def __init__(self, lattice: Lattice, eos: int, pad: int) -> None:
        self._device = lattice.candidates.device
        candidates, first, following = (
            tensor.contiguous().cpu().numpy()
            for tensor in (lattice.candidates, lattice.first, lattice.following)
        )
        self._lattice: HostLattice = candidates, first, following
        self._eos, self._pad = eos, pad
        # Each row's first slot to fill, the candidate chosen in the slot before it, and the number
        # of slots.
        self._places = np.zeros((3, len(lattice.candidates)), np.int64)
        self._places[2] = lattice.candidates.size(1)
        self._trees: Trees | None = None
        """The trees of all rows; None before they are grown."""

    def expected_accepted(self, nodes: int) -> list[float]:
        """Return the expected accepted length of each row's tree of ``nodes``, by the drafter's
        probabilities; 0 where nothing is left."""
        expected: list[float] = self._grow(nodes)[-1].tolist()
        return expected

    def _grow(self, nodes: int) -> Trees:
        """Grow the trees of all rows."""
        self._trees = grow_all(self._lattice, self._places, nodes, self._eos, self._pad)
        return self._trees

    def replace(self, rows: list[int], drafted: LatticeTrees) -> None:
        """Take over a new draft of some rows; the trees of the others stay."""
        (candidates, first, following), new = self._lattice, drafted._lattice
        self._lattice = (
            _replaced(candidates, rows, new[0]),
            _replaced(first, rows, new[1]),
            _replaced(following, rows, new[2]),
        )
        self._places[:, rows] = drafted._places
        if self._trees is not None:
            places = self._places, np.array(rows)
            grow_some(self._lattice, *places, self._eos, self._pad, self._trees)

    def grow(self, nodes: int, lengths: list[int], called: list[bool]) -> TreeDraft:
        """Return the ``nodes`` most probable continuations of every row, as trees.

        A token's probability is that of the path to it, so the most probable tokens form a tree:
        broad where the drafter is unsure, deep where it is sure. This is best-first search as in
        OPT-Tree (Wang et al., TACL 2025) and EAGLE-2 (Li et al., EMNLP 2024), but a lattice needs
        no pass of the drafter for each level. Nothing continues an EOS.

        Args:
            lengths: the number of nodes of each row.
            called: True for rows that had a pass of the drafter.
        """
        tokens, parents, depths, ancestors, gains, _ = self._trees or self._grow(nodes)
        on_device = {
            "tokens": tokens, "depths": depths, "ancestors": ancestors, "parents": parents
        }  # fmt: skip
        return TreeDraft(
            drafted=lengths,
            called=called,
            host_parents=parents,
            host_tokens=tokens,
            gains=gains,
            **{name: torch.from_numpy(array).to(self._device) for name, array in on_device.items()},
        )

    def advance(self, accepted: list[int], last: list[int]) -> bool:
        """Move every row on by its ``accepted`` tokens and the verifier's, ``last``; return whether
        anything is left of any row."""
        self._trees = None
        return bool(advance(self._lattice[0], self._places, np.array((accepted, last))))

    def keep(self, rows: list[int]) -> None:
        """Go on with ``rows`` only."""
        self._trees = None
        candidates, first, following = self._lattice
        self._lattice = candidates[rows], first[rows], following[rows]
        self._places = np.ascontiguousarray(self._places[:, rows])


def _replaced(old: NDArray[Number], rows: list[int], new: NDArray[Number]) -> NDArray[Number]:
    """Replace some rows of a lattice, which may have other numbers of slots."""
    missing = new.shape[1] - old.shape[1]
    if missing > 0:
        old = np.pad(old, [(0, 0), (0, missing)] + [(0, 0)] * (old.ndim - 2))
    old[rows, : new.shape[1]] = new
    return old
