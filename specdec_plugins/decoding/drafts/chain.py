"""Drafts in which each token follows the one before it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch
from torch import Tensor

from specdec_plugins.decoding.acceptance import AcceptanceRule, Accepted, Verification
from specdec_plugins.decoding.acceptance.sampling import Proposal
from specdec_plugins.decoding.acceptance.walk import walk_along
from specdec_plugins.decoding.kernels import indices


@lru_cache(maxsize=512)
def _triangle(slots: int, device: torch.device) -> Tensor:
    """Return ``(slots, slots)`` bool: each slot comes after those before; not to be changed."""
    with torch.inference_mode(False):
        return torch.ones(slots, slots, dtype=torch.bool, device=device).tril()


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
    def depths(self) -> Tensor:
        """``(slots + 1,)`` the distance of each token from the root, the last committed one."""
        return indices(self.tokens.size(1) + 1, self.tokens.device)

    @property
    def after(self) -> Tensor:
        """``(rows, slots)`` the token read before each: 0 is the root, i > 0 the i-th drafted."""
        return indices(self.tokens.size(1), self.tokens.device).expand_as(self.tokens)

    @property
    def ancestors(self) -> Tensor:
        """``(slots + 1, slots + 1)`` bool: the tokens that each comes after, itself included."""
        return _triangle(self.tokens.size(1) + 1, self.tokens.device)

    def cut(self, lengths: Tensor) -> ChainDraft:
        """Return the part to verify, where a controller asks for ``(rows,)`` tokens."""
        lengths = torch.minimum(lengths, self.lengths)
        return replace(self, tokens=self.tokens[:, : int(lengths.amax())], lengths=lengths)

    def accept(
        self, rule: AcceptanceRule, verification: Verification, room: list[int] | None
    ) -> Accepted:
        """Return what is committed; ``room`` is that of :func:`walk`."""
        best = rule.verifier_tokens(verification)
        good = rule.agrees(verification, best, self.tokens, self.after)
        return walk_along(self.tokens, good, best, verification.eos, self.lengths, room)

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

    def accept(
        self, rule: AcceptanceRule, verification: Verification, room: list[int] | None
    ) -> Accepted:
        judged = rule.judge_drawn(verification, self.tokens, self.proposal, self.lengths)
        return walk_along(self.tokens, *judged, verification.eos, self.lengths, room)
