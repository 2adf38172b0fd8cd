"""What is computed once of a source: a stock fairseq Transformer's encoder, and cross-attention's
keys and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from fairseq.models.transformer import TransformerEncoderBase
from fairseq.modules import MultiheadAttention
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from torch import Tensor, nn

from specdec_plugins.engines.engine import Engine
from specdec_plugins.engines.sizes import Sizes
from specdec_plugins.engines.step import Run, SourceStep
from specdec_plugins.host.fairseq_types import EncoderOut
from specdec_plugins.models.layers import (
    DecoderLayerRunner,
    EncoderLayerRunner,
    LayerRunner,
    Projection,
    additive,
    among_themselves,
    source_memory,
)

Encode = Callable[[Tensor, Tensor], EncoderOut]
"""(source tokens ``(batch, source)``, their lengths ``(batch,)``) -> the encoder's output."""


def frozen_encoder(encoder: TransformerEncoderBase, engine: Engine) -> Encode:
    """The quickest way to run an encoder whose weights are not to change.

    An encoder whose forward, or that of a layer, is not fairseq's own is run by that.
    """
    if same_methods(encoder, TransformerEncoderBase, "forward", "forward_scriptable") and all(
        same_methods(layer, TransformerEncoderLayerBase, "forward", "residual_connection")
        and type(layer.self_attn) is MultiheadAttention
        and not getattr(layer.self_attn, "use_xformers", False)
        for layer in encoder.layers
    ):
        run, sizes = engine.prepare(EncoderStep(encoder)), engine.sizes
        return lambda tokens, lengths: _encode(encoder, run, sizes, tokens, lengths)
    return lambda tokens, lengths: encoder(tokens, src_lengths=lengths)


def same_methods(module: nn.Module, stock: type, *methods: str) -> bool:
    """Whether a module has these methods of a class of fairseq's, and no others of these names."""
    return all(getattr(type(module), name, None) is getattr(stock, name) for name in methods)


def _encode(
    encoder: TransformerEncoderBase,
    run: Run,
    sizes: Sizes,
    tokens: Tensor,
    lengths: Tensor,
) -> EncoderOut:
    if not sizes.exact:
        tokens = _padded(tokens, sizes, encoder.padding_idx)
    x, embedded = encoder.forward_embedding(tokens)
    padding, mask = tokens.eq(encoder.padding_idx), None
    some = bool(padding.any())
    if some:
        x = x.masked_fill(padding[..., None], 0)
    if some or not sizes.exact:
        mask = additive(~padding[:, None, None], x.dtype)
    (states,) = run(x, mask)
    return {
        "encoder_out": [states.transpose(0, 1)],
        "encoder_padding_mask": [padding] if some else [],
        "encoder_embedding": [embedded],
        "encoder_states": [],
        "src_tokens": [],
        "src_lengths": [lengths],
    }


def _padded(tokens: Tensor, sizes: Sizes, padding: int) -> Tensor:
    """More source tokens, which are padding, and more rows, all of which see something."""
    rows, source = tokens.shape
    tokens = F.pad(tokens, (sizes.source(source) - source, 0), value=padding)
    return torch.cat([tokens, tokens[:1].expand(sizes.rows(rows) - rows, -1)])


class EncoderStep(SourceStep):
    """The layers of a ``TransformerEncoderBase`` that is not in training."""

    def __init__(self, encoder: TransformerEncoderBase) -> None:
        super().__init__()
        self.encoder = encoder
        with torch.no_grad():
            self._layers = [EncoderLayerRunner(layer, True) for layer in encoder.layers]
        self.projections = all_projections(self._layers)

    def forward(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor]:
        """States ``(batch, source, channels)`` of embedded tokens ``x``, of the same shape.

        ``mask``: ``(batch, 1, 1, source)``, to be added to attention scores.
        """
        for runner in self._layers:
            x = runner(x, among_themselves(mask, runner.layer.self_attn))
        return (x if self.encoder.layer_norm is None else self.encoder.layer_norm(x),)

    def example(self, rows: int = 2, tokens: int = 7) -> tuple[Tensor | None, ...]:
        channels = int(self.encoder.layers[0].embed_dim)
        return torch.ones(rows, tokens, channels), torch.zeros(rows, 1, 1, tokens)


class MemoryStep(SourceStep):
    """What a decoder's cross-attention reads of a source."""

    # Until the next batch begins; of a large one it is some 20 MB, which need not be copied.
    transient = 1
    rows_at, tokens_at = 1, 0

    def __init__(self, layers: list[DecoderLayerRunner]) -> None:
        super().__init__()
        self._layers = layers
        self.projections = [layer.memory_input for layer in layers]

    def forward(self, states: Tensor) -> tuple[Tensor]:
        """``(layers, 2, rows, heads, source, dim)`` of ``(source, rows, channels)`` encoder
        states."""
        return (source_memory(self._layers, states),)

    def example(self, rows: int = 2, tokens: int = 7) -> tuple[Tensor | None, ...]:
        return (torch.ones(tokens, rows, int(self._layers[0].layer.encoder_attn.kdim)),)


def all_projections(layers: Sequence[LayerRunner]) -> list[Projection]:
    """Those of all layers."""
    return [projection for layer in layers for projection in layer.projections]


def example_tokens(rows: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Of a step's example: tokens ``(rows, tokens)`` and their positions."""
    ids = torch.ones(rows, tokens, dtype=torch.long)
    return ids, torch.arange(tokens).expand(rows, -1).contiguous()


def example_memory(
    layers: list[DecoderLayerRunner], rows: int, source: int
) -> tuple[Tensor, Tensor]:
    """Of a step's example: what cross-attention reads of such sources, and its mask."""
    heads, dim = layers[0].heads, layers[0].head_dim
    return torch.zeros(len(layers), 2, rows, heads, source, dim), torch.zeros(rows, 1, 1, source)
