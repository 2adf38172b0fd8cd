"""A stock fairseq Transformer encoder as a pure step."""

from __future__ import annotations

from collections.abc import Callable

from fairseq.models.transformer import TransformerEncoderBase
from fairseq.modules import MultiheadAttention
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from torch import Tensor, nn

from specdec_plugins.fairseq_types import EncoderOut
from specdec_plugins.models.layers import EncoderLayerRunner, additive, among_themselves

Encode = Callable[[Tensor, Tensor], EncoderOut]
"""(source tokens ``(batch, source)``, their lengths ``(batch,)``) -> the encoder's output."""


def frozen_encoder(encoder: TransformerEncoderBase) -> Encode:
    """The quickest way to run an encoder whose weights are not to change.

    An encoder whose forward, or that of a layer, is not fairseq's own is run by that.
    """
    if _same(encoder, TransformerEncoderBase, "forward", "forward_scriptable") and all(
        _same(layer, TransformerEncoderLayerBase, "forward", "residual_connection")
        and type(layer.self_attn) is MultiheadAttention
        and not getattr(layer.self_attn, "use_xformers", False)
        for layer in encoder.layers
    ):
        step = EncoderStep(encoder)
        return lambda tokens, lengths: _encode(step, tokens, lengths)
    return lambda tokens, lengths: encoder(tokens, src_lengths=lengths)


def _same(module: nn.Module, stock: type, *methods: str) -> bool:
    return all(getattr(type(module), name, None) is getattr(stock, name) for name in methods)


def _encode(step: EncoderStep, tokens: Tensor, lengths: Tensor) -> EncoderOut:
    encoder = step.encoder
    x, embedded = encoder.forward_embedding(tokens)
    padding, mask = tokens.eq(encoder.padding_idx), None
    if bool(padding.any()):
        x = x.masked_fill(padding[..., None], 0)
        mask = additive(~padding[:, None, None], x.dtype)
    return {
        "encoder_out": [step(x, mask).transpose(0, 1)],
        "encoder_padding_mask": [] if mask is None else [padding],
        "encoder_embedding": [embedded],
        "encoder_states": [],
        "src_tokens": [],
        "src_lengths": [lengths],
    }


class EncoderStep(nn.Module):
    """The layers of a ``TransformerEncoderBase`` that is not in training."""

    def __init__(self, encoder: TransformerEncoderBase) -> None:
        super().__init__()
        self.encoder = encoder
        self._layers = [EncoderLayerRunner(layer, frozen=True) for layer in encoder.layers]

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """States ``(batch, source, channels)`` of embedded tokens ``x``, of the same shape.

        ``mask``: ``(batch, 1, 1, source)``, to be added to attention scores.
        """
        for runner in self._layers:
            x = runner(x, among_themselves(mask, runner.layer.self_attn))
        return x if self.encoder.layer_norm is None else self.encoder.layer_norm(x)
