"""What the slots of a block may hold: scores of every slot alone, or of pairs of neighbours. No
fairseq in here."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CANDIDATES = 16
"""The most candidates of a slot."""


def in_vocabulary(places: Tensor, vocabulary: Tensor | None) -> Tensor:
    """Return the tokens at ``places`` ``(…)`` of a draft vocabulary ``(n,)``; None: of all
    tokens."""
    return places if vocabulary is None else vocabulary[places]


@dataclass(frozen=True)
class SlotLogits:
    """What each slot may hold, whatever the others do."""

    logits: Tensor
    """``(rows, slots, n)``, float32, of the draft vocabulary; of all tokens pad's is so low that it
    is never chosen."""
    vocabulary: Tensor | None = None
    """``(n,)`` the draft vocabulary; None: all tokens."""

    def choose(self) -> Tensor:
        """``(rows, slots)`` the best tokens."""
        return in_vocabulary(self.logits.argmax(-1), self.vocabulary)

    def choose_with_confidence(self) -> tuple[Tensor, Tensor]:
        """Chooses tokens as :meth:`choose` does, and tells each one's probability ``(rows,
        slots)``, float32.

        The probability is the drafter's own, among all that it chose that token from.
        """
        # Not the best of the softmax, in which two scores may be rounded to the same.
        best = self.logits.max(-1)
        tokens = in_vocabulary(best.indices, self.vocabulary)
        return tokens, (best.values - self.logits.logsumexp(-1)).exp()

    def lattice(self) -> Lattice:
        """A slot's candidates do not depend on those of the slot before."""
        most = self.logits.size(-1) - (self.vocabulary is None)  # Pad is never among them.
        best, places = self.logits.topk(min(CANDIDATES, most))
        following = best[:, 1:, None].expand(-1, -1, best.size(-1), -1)
        return Lattice(in_vocabulary(places, self.vocabulary), best[:, 0], following)


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
        """Chooses each token after the one before it."""
        return self.tokens(self.greedy())

    def choose_with_confidence(self) -> tuple[Tensor, Tensor]:
        """Tells also each token's probability among the slot's candidates."""
        places = self.greedy()
        return self.tokens(places), self.confidence(places)

    def lattice(self) -> Lattice:
        """This one."""
        return self

    def greedy(self) -> Tensor:
        """``(rows, slots)`` places among the candidates: slot by slot the best one."""
        return self.walk(torch.zeros_like(self.candidates[:, 0, 0]), self.following.argmax(-1))

    @staticmethod
    def walk(first: Tensor, following: Tensor) -> Tensor:
        """``(rows, slots)`` places: ``first`` ``(rows,)``, then what ``following`` ``(rows, slots -
        1, candidates)`` has in the place before."""
        chosen = [first[:, None]]
        for followers in following.unbind(1):
            chosen.append(followers.gather(1, chosen[-1]))
        return torch.cat(chosen, dim=1)

    def tokens(self, places: Tensor) -> Tensor:
        """``(rows, slots)`` the candidates at ``places``."""
        return self.candidates.gather(-1, places[..., None])[..., 0]

    def confidence(self, places: Tensor) -> Tensor:
        """``(rows, slots)`` probabilities of a :meth:`greedy` path's tokens, each among its slot's
        candidates."""
        scores = torch.cat([self.first[:, None], self.after(self.following, places)], dim=1)
        return scores.softmax(-1).amax(-1)

    @staticmethod
    def after(following: Tensor, places: Tensor) -> Tensor:
        """Return the scores ``(rows, slots - 1, candidates)`` of what comes after the candidates at
        ``places``, from ``(rows, slots - 1, candidates, candidates)``."""
        before = places[:, :-1, None, None].expand(-1, -1, 1, following.size(-1))
        return following.gather(2, before)[:, :, 0]


SlotScores = SlotLogits | Lattice
