"""Drafts that branch: a tree of likely continuations, verified in one pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.decoding.acceptance import AcceptanceRule, Accepted, Verification
from specdec_plugins.decoding.acceptance.walk import walk
from specdec_plugins.decoding.drafts.growth import HostLattice, Trees, advance, grow_all, grow_some
from specdec_plugins.decoding.kernels import Floats, on_host
from specdec_plugins.models.lattice import Lattice


@dataclass(frozen=True)
class TreeDraft:
    """Drafted tokens by probability, as a tree.

    Node 0 is the root, the last committed token; node i > 0 holds drafted token i - 1. Every node's
    parent comes before it, and none is an EOS's.
    """

    tokens: Tensor
    """``(rows, nodes)``; ``pad``, which is never accepted, fills up."""
    after: Tensor
    """``(rows, nodes)`` parents of all nodes but the root."""
    depths: Tensor
    """``(rows, nodes + 1)`` tokens from the root to each node; 0 for the root."""
    ancestors: Tensor
    """``(rows, nodes + 1, nodes + 1)`` bool: the nodes that each node comes after, and itself."""
    gains: Floats
    """``(rows, nodes + 1)`` the drafter's log-probability of the path to each node, on the host;
    minus infinity where ``pad`` fills up."""
    drafted: list[int]
    called: list[bool]

    def cut(self, lengths: Tensor) -> TreeDraft:
        """Return the whole tree: its size is decided before it is grown."""
        return self

    def accept(
        self, rule: AcceptanceRule, verification: Verification, room: list[int] | None
    ) -> Accepted:
        best = rule.verifier_tokens(verification)
        good = rule.agrees(verification, best, self.tokens, self.after)
        tree = on_host(self.after), on_host(self.tokens)
        return walk(tree, good, best, verification.eos, self.drafted, room)

    def parents_of(self, row: int) -> list[int]:
        parents: list[int] = self.after[row].tolist()
        return parents

    def chances(self) -> list[list[float]]:
        before = np.take_along_axis(self.gains, on_host(self.after), axis=1)
        chances: list[list[float]] = np.exp(self.gains[:, 1:] - before).tolist()
        return chances


class LatticeTrees:
    """A lattice on the host, and each row's position in it.

    The slots after a rejected one were drafted without knowing the tokens before them, and a
    lattice scores how well they follow the verifier's token. If that is among its slot's
    candidates, a tree can be grown from the rest without a pass of the drafter.
    """

    def __init__(self, lattice: Lattice, eos: int, pad: int) -> None:
        self._device, self._eos, self._pad = lattice.candidates.device, eos, pad
        parts = on_host(lattice.candidates), on_host(lattice.first), on_host(lattice.following)
        self._lattice: HostLattice = parts
        # Each row's first slot to fill, the candidate chosen in the slot before it, and the number
        # of slots.
        self._positions = np.zeros((3, len(lattice.candidates)), np.int64)
        self._positions[2] = lattice.candidates.size(1)
        self._trees: Trees | None = None
        """The trees of all rows; None before they are grown."""

    def expected_accepted(self, nodes: int) -> list[float]:
        """Return the expected accepted length of each row's tree of ``nodes``, by the drafter's
        probabilities; 0 where nothing is left."""
        self._trees = grow_all(self._lattice, self._positions, nodes, self._eos, self._pad)
        expected: list[float] = self._trees[-1].tolist()
        return expected

    def replace(self, rows: list[int], drafted: LatticeTrees) -> None:
        """Take over a new draft of some rows; the trees of the others stay."""
        candidates, first, following = (
            _replaced(old, rows, new) for old, new in zip(self._lattice, drafted._lattice)
        )
        self._lattice = candidates, first, following
        self._positions[:, rows] = drafted._positions
        if self._trees is not None:
            positions = self._positions, np.array(rows)
            grow_some(self._lattice, *positions, self._eos, self._pad, self._trees)

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
        if self._trees is None:
            self._trees = grow_all(self._lattice, self._positions, nodes, self._eos, self._pad)
        *arrays, gains, _ = self._trees
        tokens, after, depths, ancestors = (
            torch.from_numpy(array).to(self._device) for array in arrays
        )
        return TreeDraft(tokens, after, depths, ancestors, gains, lengths, called)

    def advance(self, accepted: list[int], last: list[int]) -> bool:
        """Move every row on by its ``accepted`` tokens and the verifier's, ``last``; return whether
        anything is left of any row."""
        self._trees = None
        return bool(advance(self._lattice[0], self._positions, np.array((accepted, last))))

    def keep(self, rows: list[int]) -> None:
        """Go on with ``rows`` only."""
        self._trees = None
        candidates, first, following = self._lattice
        self._lattice = candidates[rows], first[rows], following[rows]
        self._positions = np.ascontiguousarray(self._positions[:, rows])


def _replaced(old: Any, rows: list[int], new: Any) -> Any:
    """Replace some rows of a lattice, which may have other numbers of slots."""
    missing = new.shape[1] - old.shape[1]
    if missing > 0:
        old = np.pad(old, [(0, 0), (0, missing)] + [(0, 0)] * (old.ndim - 2))
    old[rows, : new.shape[1]] = new
    return old
