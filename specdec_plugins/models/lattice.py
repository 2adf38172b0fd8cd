"""What the slots of a block may hold. No fairseq in here."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CANDIDATES = 16
"""Of each slot, at most."""


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
        """Of ``(rows, slots - 1, candidates, candidates)`` what comes after the candidates at
        ``places``: ``(rows, slots - 1, candidates)``."""
        before = places[:, :-1, None, None].expand(-1, -1, 1, following.size(-1))
        return following.gather(2, before)[:, :, 0]
