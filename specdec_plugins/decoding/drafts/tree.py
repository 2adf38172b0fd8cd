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
    """Drafted tokens by probability, and how they hang together.

    Node 0 is the root, the last committed token; node i > 0 holds drafted token i - 1. Every node's
    parent comes before it, and none is an EOS's.
    """

    tokens: Tensor
    """``(rows, nodes)``; ``pad``, which no verifier accepts, where there are fewer."""
    drafted: list[int]
    called: list[bool]
    depths: Tensor
    """``(rows, nodes + 1)`` tokens from the root to each node, its own included; 0 of the root."""
    ancestors: Tensor
    """``(rows, nodes + 1, nodes + 1)`` bool: the nodes that each node comes after, and itself."""
    parents: Tensor
    """``(rows, nodes)`` of all but the root."""
    host_parents: Ints
    """The same on the host."""
    host_tokens: Ints
    """``(rows, nodes)`` the drafted tokens, likewise."""
    gains: Floats
    """``(rows, nodes + 1)`` log-probability to the drafter of the way to each node, likewise; minus
    infinity of what fills up."""

    @property
    def after(self) -> Tensor:
        return self.parents

    def cut(self, lengths: Tensor) -> TreeDraft:
        """The whole tree: how large it is, is decided before it is grown."""
        return self

    def accept(
        self, rule: AcceptanceRule, verification: Verification, room: list[int] | None
    ) -> Accepted:
        own = rule.verifier_tokens(verification)
        good = rule.agrees(verification, own, self.tokens, self.parents)
        host = self.host_parents, self.host_tokens
        return walk(host, good, own, verification.eos, self.drafted, room)

    def parents_of(self, row: int) -> list[int]:
        found: list[int] = self.host_parents[row].tolist()
        return found

    def chances(self) -> list[list[float]]:
        before = np.take_along_axis(self.gains, self.host_parents, axis=1)
        found: list[list[float]] = np.exp(self.gains[:, 1:] - before).tolist()
        return found


class LatticeTrees:
    """A lattice on the host, and how far each row has come in it.

    What a draft holds for the slots after a rejected one was drafted without knowing the tokens
    before it, and a lattice says how well it follows the verifier's token: unless that is none of
    its slot's candidates, a tree can be grown after it from what is left, without a pass of the
    drafter.
    """

    def __init__(self, lattice: Lattice, eos: int, pad: int) -> None:
        self._device = lattice.candidates.device
        candidates, first, following = (
            tensor.contiguous().cpu().numpy()
            for tensor in (lattice.candidates, lattice.first, lattice.following)
        )
        self._lattice: HostLattice = candidates, first, following
        self._eos, self._pad = eos, pad
        # Of each row: the first slot to fill; which candidate of the slot before it comes before;
        # and how many slots there are: if none is left, the first one to fill.
        self._places = np.zeros((3, len(lattice.candidates)), np.int64)
        self._places[2] = lattice.candidates.size(1)
        self._trees: Trees | None = None
        """The trees of all rows, once they are grown."""

    def expected_accepted(self, nodes: int) -> list[float]:
        """How many tokens of each row's tree of ``nodes`` would be accepted if each were accepted
        as often as the drafter thinks; 0 where nothing is left."""
        expected: list[float] = self._grow(nodes)[-1].tolist()
        return expected

    def _grow(self, nodes: int) -> Trees:
        """The trees of all rows, anew."""
        self._trees = grow_all(self._lattice, self._places, nodes, self._eos, self._pad)
        return self._trees

    def replace(self, rows: list[int], drafted: LatticeTrees) -> None:
        """Take over a new draft of some rows; the trees of the others stay as they are."""
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
        """The most probable continuations of every row, ``nodes`` tokens in all, by probability.

        Of all ways through what is left of the lattice, each beginning of one is a token's, with
        the probability of the whole way to it, to the drafter. The most probable ones make a tree,
        since no token is more probable than the one before it: broad where the drafter is unsure,
        deep where it is sure. (Best-first search, as in OPT-Tree, Wang et al., TACL 2025, and in
        the dynamic trees of EAGLE-2, Li et al., EMNLP 2024, but without a pass of the drafter for
        each level: a lattice has all of them.) Nothing continues an EOS.

        Args:
            lengths: how many of the nodes are each row's.
            called: which rows had a pass of the drafter for it.
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
        """Every row has gone on: by ``accepted`` tokens of its tree, and one of the verifier's,
        ``last``.

        Returns:
            whether anything is left of any row.
        """
        self._trees = None
        return bool(advance(self._lattice[0], self._places, np.array((accepted, last))))

    def keep(self, kept: list[int]) -> None:
        """Drop all rows but ``kept``."""
        self._trees = None
        candidates, first, following = self._lattice
        self._lattice = candidates[kept], first[kept], following[kept]
        self._places = np.ascontiguousarray(self._places[:, kept])


def _replaced(old: NDArray[Number], rows: list[int], new: NDArray[Number]) -> NDArray[Number]:
    """A part of a lattice with some rows replaced, which may have fewer slots or more."""
    missing = new.shape[1] - old.shape[1]
    if missing > 0:
        old = np.pad(old, [(0, 0), (0, missing)] + [(0, 0)] * (old.ndim - 2))
    old[rows, : new.shape[1]] = new
    return old
