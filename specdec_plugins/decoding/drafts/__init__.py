"""Drafted tokens of every row: chains and trees. No fairseq in here."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.decoding.acceptance import AcceptanceRule, Accepted, SamplingRule, Verification
from specdec_plugins.decoding.acceptance.sampling import Proposal
from specdec_plugins.decoding.acceptance.verification import Links, chain_links, walk
from specdec_plugins.decoding.drafts.growth import HostLattice, Trees, advance, grow_all
from specdec_plugins.decoding.kernels import Floats, Ints, on_host
from specdec_plugins.models.lattice import Lattice


@lru_cache(maxsize=4096)
def _parents(rows: int, slots: int) -> Ints:
    """Return ``(rows, slots)`` the parents of a chain's nodes; not to be changed."""
    return np.tile(np.arange(slots), (rows, 1))


@dataclass(frozen=True)
class ChainDraft:
    """Tokens that the drafter chose, slot by slot."""

    tokens: Tensor
    """``(rows, slots)``; a row's are the first of them."""
    drafted: list[int]
    """Draft lengths."""
    lengths: Tensor
    """``(rows,)`` verify lengths."""
    states: Tensor
    """``(rows, slots, channels)`` the drafter's states that tokens were chosen from."""
    confidences: Tensor
    """``(rows, slots)`` float32 the drafter's probability of each token; empty if nobody reads it.
    """

    @classmethod
    @lru_cache(maxsize=512)
    def empty(cls, rows: int, device: torch.device) -> ChainDraft:
        """Return a draft of nothing, after which a step commits the verifier's next token."""
        with torch.inference_mode(False):
            lengths = torch.zeros(rows, dtype=torch.long, device=device)
            nothing = torch.zeros(rows, 0, device=device)
            tokens = lengths.new_empty(rows, 0)
        return cls(tokens, [0] * rows, lengths, nothing[..., None], nothing)

    @classmethod
    def of(cls, tokens: Tensor) -> ChainDraft:
        """Return a draft of ``tokens`` ``(rows, slots)`` without states or probabilities."""
        rows, slots = tokens.shape
        return replace(cls.empty(rows, tokens.device), tokens=tokens, drafted=[slots] * rows)

    @property
    def called(self) -> list[bool]:
        """True for rows that had a pass of the drafter."""
        return [self.tokens.size(1) > 0] * len(self.drafted)

    @property
    def links(self) -> Links:
        """Each token comes after the one before it."""
        return chain_links(self.tokens.size(1), self.tokens.device)

    def cut(self, lengths: Tensor) -> ChainDraft:
        """Return the part to verify, where a controller asks for ``(rows,)`` tokens."""
        lengths = torch.minimum(lengths, self.lengths)
        return replace(self, tokens=self.tokens[:, : int(lengths.amax())], lengths=lengths)

    def accept(self, rule: AcceptanceRule, verification: Verification) -> Accepted:
        """Return what is committed."""
        tree = _parents(*self.tokens.shape), on_host(self.tokens)
        judged = self._judged(rule, verification)
        return walk(tree, *judged, verification.eos, self.lengths.tolist())

    def _judged(self, rule: AcceptanceRule, verification: Verification) -> tuple[Tensor, Tensor]:
        """Return ``(rows, slots)`` True for good tokens, and ``(rows, slots + 1)`` the verifier's
        token after each."""
        best, after = rule.verifier_tokens(verification), self.links.after.expand_as(self.tokens)
        return rule.agrees(verification, best, self.tokens, after), best

    def parents_of(self, row: int) -> None:
        """Return a tree's parents, for a trace."""

    def chances(self) -> list[list[float]]:
        """Return the drafter's probability of each token, for a trace."""
        confidences: list[list[float]] = self.confidences.tolist()
        return confidences


@dataclass(frozen=True)
class DrawnDraft(ChainDraft):
    """Tokens that were drawn, each after the one before it."""

    proposal: Proposal = field(kw_only=True)

    def cut(self, lengths: Tensor) -> ChainDraft:
        """Return one token more than asked for: leaving out a token must not depend on which token
        it is, and the token at which a controller cuts made it cut."""
        return super().cut(lengths + 1)

    def _judged(self, rule: AcceptanceRule, verification: Verification) -> tuple[Tensor, Tensor]:
        assert isinstance(rule, SamplingRule)
        good, token = rule.judge_drawn(verification, self.tokens, self.proposal, self.lengths)
        return good, token.expand(-1, self.tokens.size(1) + 1)


@dataclass(frozen=True)
class TreeDraft:
    """Drafted tokens by probability, as a tree.

    Node 0 is the root, the last committed token; node i > 0 holds drafted token i - 1. Every node's
    parent comes before it, and none is an EOS's.
    """

    tokens: Tensor
    """``(rows, nodes)``; ``pad``, which is never accepted, fills up."""
    links: Links
    gains: Floats
    """``(rows, nodes + 1)`` the drafter's log-probability of the path to each node, on the host;
    minus infinity where ``pad`` fills up."""
    drafted: list[int]
    called: list[bool]

    def cut(self, lengths: Tensor) -> TreeDraft:
        """Return the whole tree: its size is decided before it is grown."""
        return self

    def accept(self, rule: AcceptanceRule, verification: Verification) -> Accepted:
        best = rule.verifier_tokens(verification)
        good = rule.agrees(verification, best, self.tokens, self.links.after)
        tree = on_host(self.links.after), on_host(self.tokens)
        return walk(tree, good, best, verification.eos, self.drafted)

    def parents_of(self, row: int) -> list[int]:
        parents: list[int] = self.links.after[row].tolist()
        return parents

    def chances(self) -> list[list[float]]:
        before = np.take_along_axis(self.gains, on_host(self.links.after), axis=1)
        chances: list[list[float]] = np.exp(self.gains[:, 1:] - before).tolist()
        return chances


Draft = ChainDraft | TreeDraft
"""The attributes that a verifier reads are alike."""


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
        self._positions[:, rows], self._trees = drafted._positions, None

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
        links = Links(after, depths, ancestors, nodes)
        return TreeDraft(tokens, links, gains, lengths, called)

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
