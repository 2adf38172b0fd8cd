"""The buffers of a resident step, at fixed addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec_plugins.decoding.kernels import to_device
from specdec_plugins.decoding.steps.drafter import DrafterStep
from specdec_plugins.decoding.steps.verifier import VerifierStep
from specdec_plugins.models.layers import DecoderLayerRunner


@dataclass(frozen=True)
class Kind:
    """The draft of every step."""

    block: int = 0
    """Slots of a pass of the drafter, for trees the largest depth; 0: nothing is drafted."""
    nodes: int = 0
    """Drafted tokens of a tree; 0: drafts are chains."""

    @property
    def slots(self) -> int:
        """Tokens that the verifier reads: the last committed one, and the draft."""
        return 1 + (self.nodes or self.block)

    @property
    def window(self) -> int:
        """The largest number of tokens that a step commits."""
        return 1 + self.block


@dataclass(frozen=True)
class Shape:
    """The sizes of a step's buffers."""

    rows: int
    width: int
    """Positions of the verifier's cache; the last ones are for the tokens that are read."""
    source: int
    """Source tokens."""


class State:
    """The rows of a batch; nobody reads those that have ended."""

    def __init__(
        self,
        steps: tuple[VerifierStep, DrafterStep | None],
        kind: Kind,
        shape: Shape,
        weight: Tensor,
    ) -> None:
        """``weight``: the verifier's, for precision and device."""
        verifier, drafter = steps
        rows, width = shape.rows, shape.width
        self.device, self._rows = weight.device, rows
        self.source = self._counts(rows, shape.source)
        """``(rows, source)`` tokens of the source."""
        self.lengths, self.limits, self.last = (self._counts(rows) for _ in range(3))
        """``(rows,)``: committed tokens; their limit before EOS; the last one, EOS at first."""
        self.new = self._counts(rows)
        """``(rows,)`` tokens that the last step committed, which the drafter has not cached."""
        self.going = self._counts(rows, dtype=torch.bool)
        self.tokens = self._counts(rows, kind.window + kind.block)
        """``(rows, window + block)`` the tokens that the last step committed, then padding."""
        self.history = self._counts(rows, width)
        """``(rows, width)`` all committed tokens, only for a repetition penalty."""
        self.cache = _cache(verifier.layers, rows, width, weight)
        self.memory = _cache(verifier.layers, rows, shape.source, weight)
        self.memory_mask = weight.new_zeros(rows, 1, 1, shape.source)
        self.features, self.draft_cache, self.draft_memory = None, None, None
        if drafter is not None and kind.block:
            behind = width - kind.slots + kind.window + kind.block
            self.draft_cache = _cache(drafter.layers, rows, behind, weight)
            self.draft_memory = _cache(drafter.layers, rows, shape.source, weight)
            if drafter.channels:
                self.features = weight.new_zeros(rows, kind.window, drafter.channels)
        self._by_rows: list[tuple[Tensor | None, int]] = [
            (tensor, 0) for tensor in (self.lengths, self.limits, self.last, self.new, self.tokens)
        ]
        self._by_rows += [(self.history, 0), (self.memory_mask, 0), (self.features, 0)]
        self._by_rows += [
            (tensor, 2) for tensor in (self.cache, self.memory, self.draft_cache, self.draft_memory)
        ]

    def _counts(self, *shape: int, dtype: torch.dtype = torch.long) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def begin(self, tokens: Tensor, limits: list[int], pad: int, eos: int) -> None:
        """Begin with the sources ``tokens`` ``(rows, n)``; other rows are padding."""
        rows, length = tokens.shape
        self.source.fill_(pad)
        self.source[:rows, -length:] = tokens
        # Padding rows copy the first row's source: attention over nothing is NaN.
        self.source[rows:, -length:] = tokens[:1]
        self.limits.copy_(to_device(limits + limits[:1] * (self._rows - rows), self.device))
        self.lengths.zero_()
        self.new.zero_()
        self.last.fill_(eos)
        self._go_on(rows)

    def take(self, other: State, rows: list[int]) -> None:
        """Go on with some ``rows`` of another state, which is no larger."""
        chosen = to_device(rows + rows[:1] * (self._rows - len(rows)), self.device)
        for (target, dim), (source, _) in zip(self._by_rows, other._by_rows, strict=True):
            if target is not None and source is not None:
                part = source.index_select(dim, chosen)
                target[tuple(slice(size) for size in part.shape)].copy_(part)
        self._go_on(len(rows))

    def _go_on(self, rows: int) -> None:
        """Mark the first ``rows`` as going; the others are padding."""
        self.going[:rows], self.going[rows:] = True, False


def _cache(layers: Sequence[DecoderLayerRunner], rows: int, width: int, weight: Tensor) -> Tensor:
    """Return zeros: a masked position has weight 0, and 0 x NaN would be NaN."""
    heads, dim = layers[0].heads, layers[0].head_dim
    return weight.new_zeros(len(layers), 2, rows, heads, width, dim)
