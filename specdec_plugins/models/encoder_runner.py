"""A stock fairseq Transformer encoder, run with its own weights but prepared projections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairseq.models.transformer import TransformerEncoderBase
from fairseq.modules import MultiheadAttention
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from torch import Tensor

from specdec_plugins.models.layers import EncoderLayerRunner, additive, among_themselves

Encode = Callable[[Tensor, Tensor], dict[str, list[Tensor]]]
"""(source tokens ``(batch, source)``, their lengths ``(batch,)``) -> fairseq's encoder output."""


def frozen_encoder(encoder: Any) -> Encode:
    """The quickest way to run an encoder whose weights are not to change.

    An encoder whose forward, or that of a layer, is not fairseq's own is run by that.
    """
    if _same(encoder, TransformerEncoderBase, "forward", "forward_scriptable") and all(
        _same(layer, TransformerEncoderLayerBase, "forward", "residual_connection")
        and type(layer.self_attn) is MultiheadAttention
        and not getattr(layer.self_attn, "use_xformers", False)
        for layer in encoder.layers
    ):
        return EncoderRunner(encoder)
    return lambda tokens, lengths: encoder(tokens, src_lengths=lengths)


def _same(module: Any, stock: Any, *methods: str) -> bool:
    return all(getattr(type(module), name, None) is getattr(stock, name) for name in methods)


class EncoderRunner:
    """Runs a ``TransformerEncoderBase`` that is not in training."""

    def __init__(self, encoder: Any) -> None:
        self.encoder = encoder
        self.layers = [EncoderLayerRunner(layer, frozen=True) for layer in encoder.layers]

    def __call__(self, src_tokens: Tensor, src_lengths: Tensor) -> dict[str, list[Tensor]]:
        """Encode ``(batch, source)`` tokens; the result is in fairseq's form."""
        encoder = self.encoder
        x, embedded = encoder.forward_embedding(src_tokens)
        padding, mask = src_tokens.eq(encoder.padding_idx), None
        if bool(padding.any()):
            x = x.masked_fill(padding[..., None], 0)
            mask = additive(~padding[:, None, None], x.dtype)
        for runner in self.layers:
            x = runner(x, among_themselves(mask, runner.layer.self_attn))
        if encoder.layer_norm is not None:
            x = encoder.layer_norm(x)
        return {
            "encoder_out": [x.transpose(0, 1)],
            "encoder_padding_mask": [] if mask is None else [padding],
            "encoder_embedding": [embedded],
            "encoder_states": [],
            "src_tokens": [],
            "src_lengths": [src_lengths],
        }
