"""Pure steps, which engines run. No fairseq in here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from specdec_plugins.models.attention import Attend, attended, split_heads, stored
from specdec_plugins.models.layers import DecoderLayerRunner, Projection

Results = tuple[Tensor, ...]
#: Called like a step's forward.
Run = Callable[..., Results]


class Step(nn.Module):
    """A function of tensors that keeps no state.

    An input may be None; engines that compile steps expect the same ones as in :meth:`example`.
    """

    #: The number of first results that the next run overwrites; until then the caller may change
    #: them.
    transient = 0

    #: The linear maps, whose weights an engine may hold in another form.
    projections: Sequence[Projection] = ()

    #: True if int8 engines are to quantise each token by itself: this is more exact, and pays where
    #: a call has many tokens.
    by_token = False

    #: Those of them that int8 engines are to compute in float32 all the same.
    exact: Sequence[Projection] = ()

    #: The names of large tensors that are only indexed; an engine may read them in place.
    lookups: Sequence[str] = ()

    #: The indices of inputs that hold keys and values of all layers, the cached ones first.
    by_layer: Sequence[int] = ()

    def example(self, rows: int, tokens: int, others: int) -> tuple[Tensor | None, ...]:
        """Return inputs to trace, of small sizes; None for inputs that never occur.

        Args:
            rows, tokens: the batch and its tokens.
            others: every other size that changes from call to call grows with it.
        """
        raise NotImplementedError


class CachedStep(Step):
    """A step over cached keys and values, to which it adds those of the new tokens."""

    layers: list[DecoderLayerRunner]
    #: The step as a function whose first argument is each layer's self-attention, a sequence of
    #: :data:`~specdec_plugins.models.layers.Attend`.
    run: Callable[..., Results]

    def example_run(self, rows: int, tokens: int, others: int) -> tuple[Tensor | None, ...]:
        """Return inputs of :meth:`run` after the first, of the sizes of an :meth:`example`."""
        raise NotImplementedError

    def example(self, rows: int, tokens: int, others: int) -> tuple[Tensor | None, ...]:
        layer = self.layers[0]
        width = others + 2
        past = torch.zeros(len(self.layers), 2, rows, layer.heads, width, layer.head_dim)
        indices = torch.cartesian_prod(*map(torch.arange, (rows, tokens, layer.heads)))
        indices = indices[:, [0, 2, 1]].view(rows, tokens, layer.heads, 3)
        return (
            past,
            indices,
            torch.zeros(rows, 1, tokens, width),
            *self.example_run(rows, tokens, others),
        )

    def forward(
        self,
        past: Tensor | list[list[Tensor]],
        indices: Tensor | None,
        mask: Tensor | None,
        *inputs: Tensor | None,
    ) -> Results:
        """
        Args:
            past: ``(layers, 2, rows, heads, width, dim)`` cached keys and values with room for new
                ones; or those of each layer, which are replaced.
            indices: ``(rows, slots, heads, 3)`` row, head and position of each new token; None: the
                last positions.
            mask: ``(rows, 1, slots, width)``, added to the scores of self-attention.
            inputs: those of :meth:`run`.
        """
        layers = zip(self.layers, past)
        return self.run([_attention(x.heads, pair, indices, mask) for x, pair in layers], *inputs)


def _attention(
    heads: int, past: Tensor | list[Tensor], indices: Tensor | None, mask: Tensor | None
) -> Attend:
    """Return self-attention over ``past`` keys and values, to which it adds new ones."""

    def attend(query: Tensor, key_value: Tensor) -> Tensor:
        keys, values = past
        if indices is not None:
            new = torch.split(key_value, int(key_value.size(-1)) // 2, -1)
            keys = stored(keys, indices, new[0])
            values = stored(values, indices, new[1])
            if isinstance(past, list):
                past[:] = keys, values
        elif isinstance(past, Tensor):
            past[..., -query.size(1) :, :] = split_heads(key_value, heads)
        return attended(query, keys, values, mask)

    return attend
