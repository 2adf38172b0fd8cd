"""Pure steps, which engines run. No fairseq in here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

import torch
from torch import Tensor, nn

from specdec_plugins.models.attention import Attend, attended, self_attended, split_heads
from specdec_plugins.models.layers import DecoderLayerRunner, Projection

Results = tuple[Tensor, ...]
Run = Callable[..., Results]
"""Called like a step's forward."""


class Step(nn.Module):
    """A function of tensors that keeps no state.

    An input may be None; engines that compile steps expect the same ones as in :meth:`example`.
    """

    transient = 0
    """The number of first results that the next run overwrites; until then the caller may change
    them."""

    projections: Sequence[Projection] = ()
    """The linear maps, whose weights an engine may hold in another form."""

    lookups: Sequence[str] = ()
    """The names of large tensors that are only indexed."""

    def example(self) -> tuple[Tensor | None, ...]:
        """Return inputs of small, distinct sizes to trace; None for inputs that never occur."""
        raise NotImplementedError

    def lookup_tables(self) -> dict[str, Tensor]:
        """Return the tensors that :attr:`lookups` names; an engine may read them in place."""
        return {name: attrgetter(name)(self).detach() for name in self.lookups}


class SourceStep(Step):
    """A step over sources."""

    rows_at, tokens_at = 0, 1
    """The dimensions of the first input that count rows and source tokens."""

    def example(self, rows: int = 2, tokens: int = 7) -> tuple[Tensor | None, ...]:
        """Return inputs for ``rows`` sources of ``tokens`` tokens."""
        raise NotImplementedError


class CachedStep(Step):
    """A step over cached keys and values; its last result is those of the new tokens.

    That result is ``(layers, 2, rows, heads, slots, dim)``, and the next run overwrites it.
    """

    layers: list[DecoderLayerRunner]
    run: Callable[..., Results]
    """The step as a function whose first argument is each layer's self-attention, a sequence of
    :data:`~specdec_plugins.models.layers.Attend`."""
    memory_at: int
    """The index of the input that is :data:`~specdec_plugins.models.layers.KeysValues`."""

    def example(self, rows: int = 2, tokens: int = 5, others: int = 7) -> tuple[Tensor | None, ...]:
        """Return inputs of :meth:`run` after the first.

        Args:
            rows, tokens: the batch and its new tokens.
            others: every other size that changes from call to call grows with it.
        """
        raise NotImplementedError

    def forward(
        self,
        past: Tensor | Sequence[tuple[Tensor, Tensor]],
        mask: Tensor | None,
        *inputs: Tensor | None,
    ) -> Results:
        """
        Args:
            past: ``(layers, 2, rows, heads, width, dim)`` cached keys and values, or a pair of
                tensors for each layer.
            mask: added to the scores of self-attention over the cached, then the new tokens.
            inputs: those of :meth:`run`.
        """
        new: list[Tensor] = []
        attends = [_joined(layer.heads, pair, mask, new) for layer, pair in zip(self.layers, past)]
        results = self.run(attends, *inputs)
        layer, (rows, slots, _) = self.layers[0], new[0].shape
        stacked = torch.cat(new, dim=-1).view(rows, slots, len(new), 2, layer.heads, -1)
        return (*results, stacked.permute(2, 3, 0, 4, 1, 5))

    def in_room(self, past: Tensor, mask: Tensor | None, *inputs: Tensor | None) -> Results:
        """Write new keys and values into room at the end of ``past``; joining them takes longer."""
        assert inputs[0] is not None
        slots = inputs[0].size(1)
        results = self.run([_in_room(past.size(3), layer, mask, slots) for layer in past], *inputs)
        return (*results, past[..., -slots:, :])


def _joined(heads: int, past: Sequence[Tensor], mask: Tensor | None, new: list[Tensor]) -> Attend:
    """Return self-attention over cached positions and new ones, of which it appends to ``new``."""

    def attend(query: Tensor, key_value: Tensor) -> Tensor:
        new.append(key_value)
        return self_attended(query, key_value, heads, mask, (past[0], past[1]))

    return attend


def _in_room(heads: int, past: Tensor, mask: Tensor | None, slots: int) -> Attend:
    """Return self-attention over ``(2, rows, heads, width + slots, dim)``; it writes the last."""
    keys, values = past

    def attend(query: Tensor, key_value: Tensor) -> Tensor:
        past[..., -slots:, :] = split_heads(key_value, heads)
        return attended(query, keys, values, mask)

    return attend
