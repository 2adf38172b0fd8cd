"""Pure steps: what an engine can run. No fairseq in here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from specdec_plugins.models.layers import (
    Attend,
    DecoderLayerRunner,
    Projection,
    attended,
)

Results = tuple[Tensor, ...]
Run = Callable[..., Results]
"""Called like a step's forward."""


class Step(nn.Module):
    """A function of tensors alone: it keeps no state.

    An input may be None where there is nothing to say; an engine that compiles steps wants those
    that :meth:`example` has.
    """

    transient = 0
    """The number of first results that are to be read before the step is run again; until then they
    are the caller's, to be changed, too."""

    projections: Sequence[Projection] = ()
    """Its linear maps, whose weights an engine may hold in another form."""
    lookups: Sequence[Tensor] = ()
    """Matrices of which it looks up rows."""

    def example(self) -> tuple[Tensor | None, ...]:
        """Inputs of small and different sizes, for an engine that traces what is done with them;
        None for those that there never are."""
        raise NotImplementedError


class SourceStep(Step):
    """A step over sources, of which there are a few lengths again and again."""

    rows_at, tokens_at = 0, 1
    """The dimensions of its first input that count rows and source tokens."""

    def example(self, rows: int = 2, tokens: int = 7) -> tuple[Tensor | None, ...]:
        """Inputs for so many rows of so many tokens."""
        raise NotImplementedError


class CachedStep(Step):
    """A step over keys and values of the tokens before; those of the new ones are its last result,
    ``(layers, 2, rows, heads, slots, dim)``, which is to be read before it is run again."""

    layers: list[DecoderLayerRunner]
    run: Callable[..., Results]
    """The step, with the self-attention of every layer given first: a sequence of
    :data:`~specdec_plugins.models.layers.Attend`."""
    memory_at: int
    """Which of the inputs is :data:`~specdec_plugins.models.layers.KeysValues`."""

    def example(self, rows: int = 2, tokens: int = 5, others: int = 7) -> tuple[Tensor | None, ...]:
        """Inputs of :meth:`run`: so many new ``tokens`` in so many ``rows``. Every size that is
        neither, and changes from call to call, as that of a source, grows with ``others``."""
        raise NotImplementedError

    def forward(
        self,
        past: Tensor | Sequence[tuple[Tensor, Tensor]],
        mask: Tensor | None,
        *inputs: Tensor | None,
    ) -> Results:
        """
        Args:
            past: ``(layers, 2, rows, heads, width, dim)`` keys and values of the tokens before, or
                the same as a pair of each layer.
            mask: to be added to the scores of self-attention over those, then the new ones.
            inputs: those of :meth:`run`.
        """
        new: list[Tensor] = []
        attends = [_joined(keys, values, mask, new) for keys, values in past]
        results = self.run(attends, *inputs)
        return (*results, torch.stack(new))

    def in_room(self, past: Tensor, mask: Tensor | None, *inputs: Tensor | None) -> Results:
        """Return the same where ``past`` has room for the new tokens behind the others, which is
        written to: to join keys and values takes longer."""
        assert inputs[0] is not None
        slots = inputs[0].size(1)
        results = self.run([_in_room(layer, mask, slots) for layer in past], *inputs)
        return (*results, past[..., -slots:, :])


def _joined(
    past_keys: Tensor, past_values: Tensor, mask: Tensor | None, new: list[Tensor]
) -> Attend:
    """Self-attention over cached positions, ``(batch, heads, width, dim)`` each, and new ones,
    which are noted."""

    def attend(query: Tensor, key_value: Tensor) -> Tensor:
        new.append(key_value.permute(2, 0, 3, 1, 4))
        keys, values = new[-1]
        keys, values = torch.cat([past_keys, keys], dim=2), torch.cat([past_values, values], dim=2)
        return attended(query, keys, values, mask)

    return attend


def _in_room(past: Tensor, mask: Tensor | None, slots: int) -> Attend:
    """Return the same over ``(2, batch, heads, width + slots, dim)``, the last of which are
    written."""
    keys, values = past

    def attend(query: Tensor, key_value: Tensor) -> Tensor:
        past[..., -slots:, :] = key_value.permute(2, 0, 3, 1, 4)
        return attended(query, keys, values, mask)

    return attend
