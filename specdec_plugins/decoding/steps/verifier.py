"""The verifier's decoder: several tokens scored in one pass."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerModelBase
from fairseq.models.transformer.transformer_decoder import TransformerDecoderBase
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from torch import Tensor

from specdec_plugins.decoding.drafts import Draft
from specdec_plugins.decoding.kernels import on_host
from specdec_plugins.decoding.steps.cache import fill_mask
from specdec_plugins.decoding.steps.encoder import (
    CachedModel,
    example_of,
    frozen_encoder,
    same_methods,
)
from specdec_plugins.engines.engine import Engine
from specdec_plugins.engines.step import CachedStep, Results
from specdec_plugins.files.errors import EngineError
from specdec_plugins.models.attention import Attend
from specdec_plugins.models.layers import (
    DecoderLayerRunner,
    KeysValues,
    Projection,
    position_table,
    positioned,
    with_layers,
)

#: A decoder's methods in place of which the step runs.
DECODER_METHODS = ("forward", "extract_features", "extract_features_scriptable", "output_layer")


def check_supported(model: BaseFairseqModel) -> None:
    """Refuse a model that a verifier's step does not reproduce exactly."""
    for fault in _faults(model):
        raise EngineError(
            f"{fault}; the verifier must be a fairseq `transformer` (encoder-decoder)"
        )


def _faults(model: BaseFairseqModel) -> Iterator[str]:
    decoder = getattr(model, "decoder", None)
    if not (
        isinstance(model, TransformerModelBase) and isinstance(decoder, TransformerDecoderBase)
    ):
        yield f"{type(model).__name__}: not supported"
        return
    if not same_methods(decoder, TransformerDecoderBase, *DECODER_METHODS):
        yield f"{type(decoder).__name__}: has a forward pass of its own"
    if decoder.adaptive_softmax is not None:
        yield "--adaptive-softmax-cutoff: not supported"
    if decoder.cross_self_attention:
        yield "--cross-self-attention: not supported"
    for layer in decoder.layers:
        if not same_methods(layer, TransformerDecoderLayerBase, "forward", "residual_connection"):
            yield f"{type(layer).__name__}: has a forward pass of its own"
        if getattr(layer, "encoder_attn", None) is None:
            yield "--no-cross-attention: not supported"
        for name in ("attn_ln", "c_attn", "ffn_layernorm", "w_resid"):
            if getattr(layer, name, None) is not None:
                yield f"{name} (NormFormer): not supported"


class VerifierStep(CachedStep):
    """Logits after each of several new tokens."""

    transient = 3
    by_layer = (0, 6)
    lookups = ("decoder.embed_tokens.weight",)

    def __init__(self, model: TransformerModelBase, feature_layers: Collection[int] = ()) -> None:
        check_supported(model)
        super().__init__()
        self._feature_layers = feature_layers
        self.decoder = model.decoder
        with torch.no_grad():
            self.layers = [DecoderLayerRunner(layer, True) for layer in self.decoder.layers]
        output = self.decoder.output_projection
        self._project = Projection(output.weight, output.bias)
        self.projections = [x for layer in self.layers for x in layer.projections] + [self._project]

    def run(
        self,
        attends: Sequence[Attend],
        tokens: Tensor,
        positions: Tensor,
        table: Tensor | None,
        memory: KeysValues,
        memory_mask: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Score ``tokens`` ``(rows, slots)`` at their target ``positions``.

        Args:
            table: ``(length, channels)`` embeddings of positions; None: there are none.
            memory: that of :class:`MemoryStep`, or a pair for each layer.

        Returns:
            Logits after each token ``(rows, slots, vocab)`` in float32 or wider; the states for a
            drafter ``(rows, slots, channels)``; and ``(rows, slots)`` the logits' normalisers.
        """
        decoder = self.decoder
        inner = []
        if memory_mask is not None:
            memory_mask = memory_mask.expand(-1, -1, tokens.size(1), -1)
        x = self._embedded(tokens, positions, table)
        for number, (layer, attend, source) in enumerate(zip(self.layers, attends, memory), 1):
            x = layer(x, attend, source, memory_mask)
            if number in self._feature_layers:
                inner.append(x)
        if decoder.layer_norm is not None:
            x = decoder.layer_norm(x)
        if decoder.project_out_dim is not None:
            x = decoder.project_out_dim(x)
        logits = self._project(x)
        if logits.element_size() < 4:
            logits = logits.float()
        # Twice as fast as logsumexp on CPUs.
        normalisers = logits[..., 0] - logits.log_softmax(-1)[..., 0]
        return logits, with_layers(x, inner), normalisers

    def _embedded(self, tokens: Tensor, positions: Tensor, table: Tensor | None) -> Tensor:
        decoder = self.decoder
        x = decoder.embed_scale * decoder.embed_tokens(tokens)
        if decoder.quant_noise is not None:
            x = decoder.quant_noise(x)
        if decoder.project_in_dim is not None:
            x = decoder.project_in_dim(x)
        if table is not None:
            x = positioned(x, positions, table)
        return x if decoder.layernorm_embedding is None else decoder.layernorm_embedding(x)

    def example_run(self, rows: int, tokens: int, others: int) -> tuple[Tensor | None, ...]:
        decoder = self.decoder
        table = position_table(decoder.embed_positions, others + 2, decoder.padding_idx)
        ids, positions, *source = example_of(self.layers, rows, tokens, others)
        return (ids, positions, table, *source)


class CachedVerifier(CachedModel):
    """A :class:`VerifierStep` with a cache of every row's committed tokens."""

    def __init__(
        self,
        model: TransformerModelBase,
        padding: int,
        engine: Engine | None = None,
        feature_layers: Collection[int] = (),
        reads_sources: bool = True,
    ) -> None:
        """``reads_sources``: False for a copy, which reads what another model has encoded."""
        # Not chained: eval() returns None once fairseq has prepared a model for inference.
        model.eval()
        self.step = VerifierStep(model, feature_layers)
        positions = partial(position_table, model.decoder.embed_positions, padding=padding)
        super().__init__(self.step, engine, positions, _empty, reads_sources)
        if reads_sources:
            self.encode = frozen_encoder(model.encoder, self.engine)

    def score(self, last: Sequence[int], draft: Draft, lengths: list[int]) -> Results:
        """Return the results of :class:`VerifierStep`; the next call overwrites them.

        ``last``: the last committed token of each row, EOS at the start; ``lengths``: the number of
        committed tokens, which are cached.
        """
        new = [x if x is None else x.to(self._device) for x in self._inputs(last, draft, lengths)]
        return self.cache.run(
            self._run, max(lengths), (*new, self._table, self._memory, self._mask)
        )

    def _inputs(
        self, last: Sequence[int], draft: Draft, lengths: list[int]
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """Return mask, tokens and positions on the host."""
        slots = draft.tokens.size(1) + 1
        longest = max(lengths)
        width = self.cache.reserve(longest, slots)
        mask, tokens, positions = self._empty(len(lengths), slots, width, self._dtype)
        read = tokens.numpy()
        cached = np.array(lengths)
        read[:, 0] = last
        read[:, 1:] = on_host(draft.tokens)
        np.add(cached[:, None], on_host(draft.links.depths), out=positions.numpy())
        if not self._whole and slots == 1 and min(lengths) == longest:
            return None, tokens, positions
        fill_mask(mask, cached, on_host(draft.links.ancestors), longest)
        return mask, tokens, positions


def _empty(rows: int, slots: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    mask = torch.empty(rows, 1, slots, width, dtype=dtype)
    return mask, *torch.empty(2, rows, slots, dtype=torch.long)
