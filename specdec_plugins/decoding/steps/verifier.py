"""The verifier's decoder: scoring several tokens at once with a stock Transformer's own weights."""

from __future__ import annotations

import torch
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerModelBase
from fairseq.models.transformer.transformer_decoder import TransformerDecoderBase
from torch import Tensor, nn

from specdec_plugins.decoding.steps.cache import KVCache, attention_mask
from specdec_plugins.decoding.steps.encoder import frozen_encoder
from specdec_plugins.fairseq_types import EncoderOut
from specdec_plugins.models.layers import (
    DecoderLayerRunner,
    attend_over,
    position_table,
    positioned,
    projection,
    source_mask,
)


class UnsupportedModelError(ValueError):
    """The model is not one that this decoder can run."""


def check_supported(model: BaseFairseqModel) -> None:
    """Refuse, by name, what :class:`VerifierStep` does not reproduce exactly.

    Raises:
        UnsupportedModelError: names the model or option, and what is supported.
    """
    supported = "the verifier must be a fairseq `transformer` (encoder-decoder)"
    if not isinstance(model, TransformerModelBase) or not isinstance(
        model.decoder, TransformerDecoderBase
    ):
        raise UnsupportedModelError(f"{type(model).__name__}: not supported; {supported}")
    decoder = model.decoder
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


SourceKeys = list[tuple[Tensor, Tensor]]
"""Of each layer, cross-attention keys and values ``(rows, heads, source, dim)``."""


class VerifierStep(nn.Module):
    """Logits after each of several new tokens: a function of tensors, without a state."""

    def __init__(self, model: TransformerModelBase) -> None:
        """
        Raises:
            UnsupportedModelError: a model that cannot be run exactly.
        """
        check_supported(model)
        super().__init__()
        self.decoder = model.decoder
        with torch.no_grad():
            self.layers = [DecoderLayerRunner(layer, True) for layer in self.decoder.layers]
        output = self.decoder.output_projection
        self._project = projection(output.weight, output.bias, frozen=True)

    def memory(self, states: Tensor) -> SourceKeys:
        """What cross-attention reads of ``(source, rows, channels)`` encoder states."""
        return [layer.project(states) for layer in self.layers]

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        table: Tensor | None,
        cached: Tensor,
        mask: Tensor | None,
        memory: SourceKeys,
        memory_mask: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Logits after each token, and the states they are computed from.

        Args:
            tokens: ``(rows, slots)``.
            positions: ``(rows, slots)`` where in the target each stands.
            table: ``(length, channels)`` what stands for a position; None for nothing.
            cached: ``(layers, rows, width + slots, 2, heads, dim)`` keys and values of the tokens
                before, then room, into which those of ``tokens`` are written.
            mask: to be added to the scores of self-attention.
            memory: as :meth:`memory` made it.
            memory_mask: to be added to the scores of cross-attention.

        Returns:
            ``(rows, slots, vocab)`` and ``(rows, slots, channels)``.
        """
        decoder = self.decoder
        x = decoder.embed_scale * decoder.embed_tokens(tokens)
        if decoder.project_in_dim is not None:
            x = decoder.project_in_dim(x)
        if table is not None:
            x = positioned(x, positions, table)
        if decoder.layernorm_embedding is not None:
            x = decoder.layernorm_embedding(x)
        for layer, keys_values, source in zip(self.layers, cached, memory):
            x = layer(x, attend_over(keys_values, mask), source, memory_mask)
        if decoder.layer_norm is not None:
            x = decoder.layer_norm(x)
        if decoder.project_out_dim is not None:
            x = decoder.project_out_dim(x)
        return self._project(x), x


class CachedVerifier:
    """A :class:`VerifierStep` over a batch in which every row makes its own progress.

    Built once for a model; :meth:`start` begins a batch.
    """

    def __init__(self, model: TransformerModelBase, padding: int) -> None:
        """
        Raises:
            UnsupportedModelError: a model that cannot be run exactly.
        """
        self.model = model
        self.padding = padding
        self.step = VerifierStep(model)
        with torch.no_grad():
            self.encode = frozen_encoder(model.encoder)
        self._table: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Of states and masks, once a batch has begun."""
        return self._cache.store.dtype

    def start(self, encoder_out: EncoderOut, capacity: int) -> None:
        """Begin a batch; ``capacity``: of a row, committed tokens and new ones together."""
        states = encoder_out["encoder_out"][0]
        self._memory = self.step.memory(states)
        self._memory_mask = source_mask(encoder_out, states.dtype)
        layer = self.step.layers[0]
        shape = len(self.step.layers), states.size(1), capacity, layer.heads, layer.head_dim
        self._cache = KVCache(*shape, states.dtype, states.device)
        table = self._table
        if table is None or len(table) < capacity or table.dtype != states.dtype:
            embed = self.step.decoder.embed_positions
            self._table = position_table(embed, capacity, self.padding)

    def score(
        self, tokens: Tensor, lengths: list[int], on_device: Tensor, depths: Tensor, among: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits after each of ``tokens``, and the states they are computed from.

        Args:
            tokens: ``(rows, slots)``, first the last committed token (EOS at the start), then the
                draft.
            lengths: committed tokens of each row: as many are cached.
            on_device: ``(rows,)`` the same.
            depths, among: of a draft, how far its tokens stand from the first, and their attention.

        Returns:
            as :class:`VerifierStep`.
        """
        self._width = max(lengths)
        self._new = self._cache.reserve(self._width, tokens.size(1))
        mask = attention_mask(lengths, on_device, among, self._new.dtype)
        positions = on_device[:, None] + depths
        rest = self._memory, self._memory_mask
        logits, states = self.step(tokens, positions, self._table, self._new, mask, *rest)
        return logits, states

    def commit(self, sources: Tensor, positions: Tensor, in_place: bool) -> None:
        """Cache some of the tokens scored last: the ``sources`` ``(rows, n)``, at ``positions``.

        ``in_place``: that is where they have been put, as they are the first ones and all rows have
        the same length.
        """
        if not in_place:
            self._cache.write(self._new, sources + self._width, positions)

    def keep(self, rows: Tensor, width: int) -> None:
        """Go on with ``rows`` only, of which at most ``width`` positions are cached."""
        self._cache.keep(rows, width)
        self._memory = [(keys[rows], values[rows]) for keys, values in self._memory]
        if self._memory_mask is not None:
            self._memory_mask = self._memory_mask[rows]
