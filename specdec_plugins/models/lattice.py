"""Scores of a block's slots: of every slot alone, or of pairs of neighbours. No fairseq in here."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CANDIDATES = 16
"""The most candidates of a slot."""


def in_vocabulary(indices: Tensor, vocabulary: Tensor | None) -> Tensor:
    """Return the tokens of indices ``(…)`` in a draft vocabulary ``(n,)``; None: all tokens."""
    return indices if vocabulary is None else vocabulary[indices]


@dataclass(frozen=True)
class SlotLogits:
    """Scores of each slot's tokens, whatever the other slots hold."""

    logits: Tensor
    """``(rows, slots, n)``, float32, of the draft vocabulary; of all tokens pad's is so low that it
    is never chosen."""
    vocabulary: Tensor | None = None
    """``(n,)`` the draft vocabulary; None: all tokens."""

    def choose(self) -> Tensor:
        """Return ``(rows, slots)`` the best tokens."""
        return in_vocabulary(self.logits.argmax(-1), self.vocabulary)

    def choose_with_confidence(self) -> tuple[Tensor, Tensor]:
        """Return the best tokens, and their probabilities ``(rows, slots)`` in float32."""
        # Not the best of the softmax, in which two scores may be rounded to the same.
        best = self.logits.max(-1)
        tokens = in_vocabulary(best.indices, self.vocabulary)
        return tokens, (best.values - self.logits.logsumexp(-1)).exp()

    def lattice(self) -> Lattice:
        """Return a lattice in which candidates do not depend on those of the slot before."""
        count = self.logits.size(-1) - (self.vocabulary is None)  # Pad is no candidate.
        best, indices = self.logits.topk(min(CANDIDATES, count))
        following = best[:, 1:, None].expand(-1, -1, best.size(-1), -1)
        return Lattice(in_vocabulary(indices, self.vocabulary), best[:, 0], following)


@dataclass(frozen=True)
class Lattice:
    """Each slot's best candidates, and how well they follow those of the slot before."""

    candidates: Tensor
    """``(rows, slots, candidates)`` tokens, the first slot's best one first."""
    first: Tensor
    """``(rows, candidates)`` float32 scores of the first slot's."""
    following: Tensor
    """``(rows, slots - 1, candidates, candidates)`` float32 scores of the others', after each one
    of the slot before. The scores that may follow one candidate are to be normalised together."""

    def choose(self) -> Tensor:
        """Return ``(rows, slots)`` tokens, each the best one after the one before it."""
        return self.tokens(self.greedy())

    def choose_with_confidence(self) -> tuple[Tensor, Tensor]:
        """Return these tokens, and their probabilities among each slot's candidates."""
        indices = self.greedy()
        scores = torch.cat([self.first[:, None], self.after(self.following, indices)], dim=1)
        return self.tokens(indices), scores.softmax(-1).amax(-1)

    def lattice(self) -> Lattice:
        """Return this lattice."""
        return self

    def greedy(self) -> Tensor:
        """Return ``(rows, slots)`` indices of candidates: slot by slot the best one."""
        return self.walk(torch.zeros_like(self.candidates[:, 0, 0]), self.following.argmax(-1))

    @staticmethod
    def walk(first: Tensor, following: Tensor) -> Tensor:
        """Return ``(rows, slots)`` indices: ``first`` ``(rows,)``, then those that ``following``
        ``(rows, slots - 1, candidates)`` has for the index before."""
        chosen = [first[:, None]]
        for followers in following.unbind(1):
            chosen.append(followers.gather(1, chosen[-1]))
        return torch.cat(chosen, dim=1)

    def tokens(self, indices: Tensor) -> Tensor:
        """Return ``(rows, slots)`` the candidates of these indices."""
        return self.candidates.gather(-1, indices[..., None])[..., 0]

    @staticmethod
    def after(following: Tensor, indices: Tensor) -> Tensor:
        """Return ``(rows, slots - 1, candidates)`` scores after the candidates of these indices,
        from ``(rows, slots - 1, candidates, candidates)``."""
        before = indices[:, :-1, None, None].expand(-1, -1, 1, following.size(-1))
        return following.gather(2, before)[:, :, 0]


SlotScores = SlotLogits | Lattice
