"""Which verifiers are reproduced exactly."""

from __future__ import annotations

from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerModelBase
from fairseq.models.transformer.transformer_decoder import TransformerDecoderBase
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from torch import nn

from specdec_plugins.decoding.steps.encoder import same_methods
from specdec_plugins.files.errors import UnsupportedModelError


def check_supported(model: BaseFairseqModel) -> None:
    """Refuse, by name, what a verifier's step does not reproduce exactly.

    Raises:
        UnsupportedModelError: names the model or option, and what is supported.
    """
    supported = "the verifier must be a fairseq `transformer` (encoder-decoder)"
    if not isinstance(model, TransformerModelBase) or not isinstance(
        model.decoder, TransformerDecoderBase
    ):
        raise UnsupportedModelError(f"{type(model).__name__}: not supported; {supported}")
    decoder = model.decoder
    for module in (decoder, *decoder.layers):
        if not _is_stock(module):
            name = type(module).__name__
            raise UnsupportedModelError(f"{name}: has a forward pass of its own; {supported}")
    if decoder.adaptive_softmax is not None:
        raise UnsupportedModelError(f"--adaptive-softmax-cutoff: not supported; {supported}")
    if decoder.cross_self_attention:
        raise UnsupportedModelError(f"--cross-self-attention: not supported; {supported}")
    for layer in decoder.layers:
        if getattr(layer, "encoder_attn", None) is None:
            raise UnsupportedModelError(f"--no-cross-attention: not supported; {supported}")
        for name in ("attn_ln", "c_attn", "ffn_layernorm", "w_resid"):
            if getattr(layer, name, None) is not None:
                raise UnsupportedModelError(f"{name} (NormFormer): not supported; {supported}")


def _is_stock(module: nn.Module) -> bool:
    """Return whether the forward pass of a decoder, or of a layer of one, is fairseq's own."""
    if isinstance(module, TransformerDecoderBase):
        passes = ("forward", "extract_features", "extract_features_scriptable", "output_layer")
        return same_methods(module, TransformerDecoderBase, *passes)
    return same_methods(module, TransformerDecoderLayerBase, "forward", "residual_connection")
