"""Drafts in which each token follows the one before it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch
from torch import Tensor

from specdec_plugins.decoding.acceptance import AcceptanceRule, Accepted, Verification
from specdec_plugins.decoding.acceptance.sampling import Proposal
from specdec_plugins.decoding.acceptance.tree_walk import walk_along
from specdec_plugins.decoding.kernels import indices


@lru_cache(maxsize=512)
def triangle(slots: int, device: torch.device) -> Tensor:
    """``(slots, slots)`` bool: each slot comes after those before and itself; not to be changed."""
    with torch.inference_mode(False):
        return torch.ones(slots, slots, dtype=torch.bool, device=device).tril()


@dataclass(frozen=True)
class ChainDraft:
    """Tokens that the drafter chose, slot by slot."""

    tokens: Tensor
    drafted: list[int]
    lengths: Tensor
    """``(rows,)`` how many of its tokens each row verifies."""
    states: Tensor
    """``(rows, slots, channels)`` the drafter's states that they were chosen from."""
    confidences: Tensor
    """``(rows, slots)`` float32: the drafter's probability of each token, where a controller needs
    it, a trace is recorded or the tokens were drawn; else empty."""

    @classmethod
    @lru_cache(maxsize=512)
    def empty(cls, rows: int, device: torch.device) -> ChainDraft:
        """Nothing is drafted: a step then commits the verifier's next token. Not to be changed."""
        with torch.inference_mode(False):
            lengths = torch.zeros(rows, dtype=torch.long, device=device)
            nothing = torch.zeros(rows, 0, device=device)
            tokens = lengths.new_empty(rows, 0)
        return cls(tokens, [0] * rows, lengths, nothing[..., None], nothing)

    @classmethod
    def of(cls, tokens: Tensor) -> ChainDraft:
        """Return a draft of all ``tokens`` ``(rows, slots)``, which nothing is known of."""
        rows, slots = tokens.shape
        return replace(cls.empty(rows, tokens.device), tokens=tokens, drafted=[slots] * rows)

    @property
    def called(self) -> list[bool]:
        return [self.tokens.size(1) > 0] * len(self.drafted)

    @property
    def depths(self) -> Tensor:
        return indices(self.tokens.size(1) + 1, self.tokens.device)

    @property
    def after(self) -> Tensor:
        return indices(self.tokens.size(1), self.tokens.device).expand_as(self.tokens)

    @property
    def ancestors(self) -> Tensor:
        return triangle(self.tokens.size(1) + 1, self.tokens.device)

    def cut(self, lengths: Tensor) -> ChainDraft:
        lengths = torch.minimum(lengths, self.lengths)
        return replace(self, tokens=self.tokens[:, : int(lengths.amax())], lengths=lengths)

    def accept(
        self, rule: AcceptanceRule, verification: Verification, room: list[int] | None
    ) -> Accepted:
        return rule.accept_chain(verification, self.tokens, self.lengths, room)

    def parents_of(self, row: int) -> None:
        return

    def chances(self) -> list[list[float]]:
        found: list[list[float]] = self.confidences.tolist()
        return found


@dataclass(frozen=True)
class DrawnDraft(ChainDraft):
    """Tokens that were drawn, each after the one drawn before it."""

    proposal: Proposal = field(kw_only=True)

    def cut(self, lengths: Tensor) -> ChainDraft:
        """As many as asked for and one more: to leave a token out must not depend on what it is,
        and the one at which a controller cuts is the one that made it cut."""
        return super().cut(lengths + 1)

    def accept(
        self, rule: AcceptanceRule, verification: Verification, room: list[int] | None
    ) -> Accepted:
        judged = rule.judge_drawn(verification, self.tokens, self.proposal, self.lengths)
        return walk_along(self.tokens, *judged, verification.eos, self.lengths, room)
