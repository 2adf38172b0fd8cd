"""Rows of unequal lengths without the padding between them. No fairseq in here."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RaggedRows:
    """Where the tokens of rows of unequal lengths stand when the rows are joined.

    What is joined has a row a token, ``(tokens, 1, …)`` in place of ``(rows, slots, …)``: what
    looks at each token by itself, as linear layers do, takes it as it comes.
    """

    taken: Tensor
    """``(tokens,)`` of each, its place among the slots of all rows, one row after another."""
    places: Tensor
    """``(rows, slots)`` where each slot's token stands; of padding, the row's last token."""

    @classmethod
    def of(cls, lengths: Tensor, slots: int) -> RaggedRows:
        """Rows of ``(rows,)`` tokens each, from 1 to ``slots``. On a GPU, this waits for them."""
        index, ends = torch.arange(slots, device=lengths.device), lengths[:, None]
        starts = lengths.cumsum(0)[:, None] - ends
        taken = (index < ends).flatten().nonzero()[:, 0]
        return cls(taken, starts + torch.minimum(index, ends - 1))

    def join(self, x: Tensor) -> Tensor:
        """``(tokens, 1, …)`` of ``(rows, slots, …)``."""
        return x.flatten(0, 1).index_select(0, self.taken)[:, None]

    def pad(self, x: Tensor) -> Tensor:
        """``(rows, slots, …)`` of ``(tokens, 1, …)``."""
        found = x[:, 0].index_select(0, self.places.flatten())
        return found.view(*self.places.shape, *found.shape[1:])
