"""The buffers of a resident step: what they hold changes, where they are does not."""

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
    """What every step drafts."""

    block: int = 0
    """Slots of a pass of the drafter; of trees, tokens that they are deep at most. 0: it drafts
    nothing."""
    nodes: int = 0
    """Drafted tokens of a tree; 0: drafts are chains."""

    @property
    def slots(self) -> int:
        """Tokens that the verifier reads: the last committed one, and the draft."""
        return 1 + (self.nodes or self.block)

    @property
    def window(self) -> int:
        """The most tokens that a step commits."""
        return 1 + self.block


@dataclass(frozen=True)
class Shape:
    """The sizes of a step's buffers."""

    rows: int
    width: int
    """Positions of the verifier's cache; in the last ones stand the tokens that are read."""
    source: int
    """Source tokens."""


class State:
    """Rows that are decoded, those that have ended among them: nobody looks at these."""

    def __init__(
        self,
        steps: tuple[VerifierStep, DrafterStep | None],
        kind: Kind,
        shape: Shape,
        weight: Tensor,
    ) -> None:
        """``weight``: one of the verifier's, in whose precision and on whose device it is."""
        verifier, drafter = steps
        rows, width = shape.rows, shape.width
        self.device, self._rows = weight.device, rows
        self.source = self._counts(rows, shape.source)
        """``(rows, source)`` tokens of the source."""
        self.lengths, self.limits, self.last = (self._counts(rows) for _ in range(3))
        """``(rows,)``: committed tokens; most of them before EOS; the last one, EOS before the
        first."""
        self.new = self._counts(rows)
        """``(rows,)`` how many tokens the last step has committed, which the drafter has not
        cached."""
        self.going = self._counts(rows, dtype=torch.bool)
        self.tokens = self._counts(rows, kind.window + kind.block)
        """``(rows, window + block)`` the tokens that the last step has committed, then whatever."""
        self.history = self._counts(rows, width)
        """``(rows, width)`` all of them; kept only for a repetition penalty."""
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
        """Hold nothing yet of the sources ``tokens`` ``(rows, n)``, of which there may be fewer."""
        rows, length = tokens.shape
        self.source.fill_(pad)
        self.source[:rows, -length:] = tokens
        # What is padding sees something, too.
        self.source[rows:, -length:] = tokens[:1]
        self.limits.copy_(to_device(limits + limits[:1] * (self._rows - rows), self.device))
        self.lengths.zero_()
        self.new.zero_()
        self.last.fill_(eos)
        self._go_on(rows)

    def take(self, other: State, rows: list[int]) -> None:
        """Go on with some ``rows`` of another state, which has no more of anything."""
        there = rows + rows[:1] * (self._rows - len(rows))
        chosen = to_device(there, self.device)
        for (mine, dim), (theirs, _) in zip(self._by_rows, other._by_rows, strict=True):
            if mine is not None and theirs is not None:
                taken = theirs.index_select(dim, chosen)
                mine[tuple(slice(size) for size in taken.shape)].copy_(taken)
        self._go_on(len(rows))

    def _go_on(self, rows: int) -> None:
        """The first ``rows`` do; the others are padding."""
        self.going[:rows], self.going[rows:] = True, False


def _cache(layers: Sequence[DecoderLayerRunner], rows: int, width: int, weight: Tensor) -> Tensor:
    """Zeros: a masked position has weight 0, and 0 x NaN would be NaN."""
    heads, dim = layers[0].heads, layers[0].head_dim
    return weight.new_zeros(len(layers), 2, rows, heads, width, dim)
