"""The verifier's decoder: scoring several tokens at once with a stock Transformer's own weights."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerModelBase
from fairseq.models.transformer.transformer_decoder import TransformerDecoderBase
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from torch import Tensor, nn

from specdec_plugins.decoding.acceptance import Accepted
from specdec_plugins.decoding.drafts import Draft
from specdec_plugins.decoding.indices import indices, told
from specdec_plugins.decoding.steps.cache import KVCache, attention_mask
from specdec_plugins.decoding.steps.encoder import (
    MemoryStep,
    all_projections,
    example_memory,
    example_tokens,
    frozen_encoder,
    same_methods,
)
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.engine import Engine
from specdec_plugins.engines.step import CachedStep
from specdec_plugins.files.errors import UnsupportedModelError
from specdec_plugins.host.fairseq_types import EncoderOut
from specdec_plugins.models.layers import (
    Attend,
    DecoderLayerRunner,
    KeysValues,
    position_table,
    positioned,
    projection,
    source_mask,
    with_layers,
)
from specdec_plugins.models.rows import keep_rows


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
    """Whether the forward pass of a decoder, or of a layer of one, is fairseq's own."""
    if isinstance(module, TransformerDecoderBase):
        passes = ("forward", "extract_features", "extract_features_scriptable", "output_layer")
        return same_methods(module, TransformerDecoderBase, *passes)
    return same_methods(module, TransformerDecoderLayerBase, "forward", "residual_connection")


class VerifierStep(CachedStep):
    """Logits after each of several new tokens."""

    transient = 3
    memory_at = 3

    def __init__(
        self,
        model: TransformerModelBase,
        feature_layers: Collection[int] = (),
    ) -> None:
        """
        Args:
            feature_layers: as of a drafter.

        Raises:
            UnsupportedModelError: a model that cannot be run exactly.
        """
        check_supported(model)
        super().__init__()
        self._feature_layers = feature_layers
        self.decoder = model.decoder
        with torch.no_grad():
            self.layers = [DecoderLayerRunner(layer, True) for layer in self.decoder.layers]
        self._project = projection(self.decoder.output_projection)
        self.projections = [*all_projections(self.layers), self._project]
        self.lookups = [self.decoder.embed_tokens.weight]

    def run(
        self,
        attends: Sequence[Attend],
        tokens: Tensor,
        positions: Tensor,
        table: Tensor | None,
        memory: KeysValues,
        memory_mask: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits after each token, what a drafter reads (the states they are computed from, and
        those after some layers before them), and normalisers.

        Args:
            tokens: ``(rows, slots)``.
            positions: ``(rows, slots)`` where in the target each stands.
            table: ``(length, channels)`` what stands for a position; None for nothing.
            memory: as :class:`MemoryStep` made it, or the same as a pair of each layer.
            memory_mask: to be added to the scores of cross-attention.

        Returns:
            ``(rows, slots, vocab)`` in float32 at least; ``(rows, slots, channels)``; and
            ``(rows, slots)``, what to take off a slot's logits to make them log-probabilities.
        """
        decoder = self.decoder
        x = decoder.embed_scale * decoder.embed_tokens(tokens)
        if decoder.quant_noise is not None:
            x = decoder.quant_noise(x)
        if decoder.project_in_dim is not None:
            x = decoder.project_in_dim(x)
        if table is not None:
            x = positioned(x, positions, table)
        if decoder.layernorm_embedding is not None:
            x = decoder.layernorm_embedding(x)
        inner = []
        for number, (layer, attend, source) in enumerate(zip(self.layers, attends, memory), 1):
            x = layer(x, attend, source, memory_mask)
            if number in self._feature_layers:
                inner.append(x)
        if decoder.layer_norm is not None:
            x = decoder.layer_norm(x)
        if decoder.project_out_dim is not None:
            x = decoder.project_out_dim(x)
        logits = self._project(x)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return logits, with_layers(x, inner), logits.logsumexp(-1)

    def example(self, rows: int = 2, tokens: int = 5, others: int = 7) -> tuple[Tensor | None, ...]:
        """See the base class."""
        decoder = self.decoder
        table = position_table(decoder.embed_positions, others + 2, decoder.padding_idx)
        return (*example_tokens(rows, tokens), table, *example_memory(self.layers, rows, others))


class Scored(NamedTuple):
    """What a verifier says, as :class:`VerifierStep` gives it."""

    logits: Tensor
    states: Tensor
    normalisers: Tensor


class CachedVerifier:
    """A :class:`VerifierStep` over a batch in which every row makes its own progress.

    Built once for a model; :meth:`start` begins a batch.
    """

    def __init__(
        self,
        model: TransformerModelBase,
        padding: int,
        engine: Engine | None = None,
        feature_layers: Collection[int] = (),
    ) -> None:
        """
        Args:
            engine: what runs the steps; None is PyTorch as it is.
            feature_layers: as of the drafter that reads states.

        Raises:
            UnsupportedModelError: a model that cannot be run exactly.
        """
        engine = engine or EagerEngine()
        self.model = model
        self.padding = padding
        self.step = VerifierStep(model, feature_layers)
        self._run = engine.prepare(self.step)
        self._read_source = engine.prepare(MemoryStep(self.step.layers))
        with torch.no_grad():
            self.encode = frozen_encoder(model.encoder, engine)
        self._table: Tensor | None = None

    def start(self, encoder_out: EncoderOut, capacity: int) -> None:
        """Begin a batch; ``capacity``: of a row, committed tokens and new ones together."""
        states = encoder_out["encoder_out"][0]
        (self._memory,) = self._read_source(states)
        self._memory_mask = self._source_mask(encoder_out, states)
        self._begin(states, capacity)

    def _source_mask(self, encoder_out: EncoderOut, states: Tensor) -> Tensor | None:
        """What to add to the scores of cross-attention."""
        return source_mask(encoder_out, states.dtype)

    def _begin(self, states: Tensor, capacity: int) -> None:
        """Cache nothing, of the rows of the encoder's ``states`` ``(source, rows, channels)``."""
        layer = self.step.layers[0]
        shape = len(self.step.layers), states.size(1), capacity, layer.heads, layer.head_dim
        self._cache = KVCache(*shape, states.dtype, states.device)
        self._tell_positions(capacity, states.dtype)

    def _tell_positions(self, count: int, dtype: torch.dtype) -> None:
        """Know what stands for so many positions."""
        table = self._table
        if table is None or len(table) < count or table.dtype != dtype:
            self._table = position_table(self.step.decoder.embed_positions, count, self.padding)

    def score(self, last: Tensor, draft: Draft, lengths: list[int]) -> Scored:
        """What the verifier says after each of a row's tokens.

        Args:
            last: ``(rows,)`` the last committed token (EOS at the start), which comes before the
                draft.
            lengths: committed tokens of each row: as many are cached.

        Returns:
            what is to be read before the next call.
        """
        tokens = torch.cat([last[:, None], draft.tokens], dim=1)
        self._lengths = told(lengths, tokens.device)
        positions = self._lengths[:, None] + draft.depths
        self._width = max(lengths)
        self._new = self._cache.reserve(self._width, tokens.size(1))
        dtype = self._new.dtype
        mask = attention_mask(lengths, self._lengths, draft.attention(dtype), dtype)
        rest = self._table, self._memory, self._memory_mask
        return Scored(*self._run(self._new, mask, tokens, positions, *rest))

    def commit(self, accepted: Accepted, lengths: list[int]) -> None:
        """Cache what was accepted of the draft scored last; ``lengths``: as they were when it
        was."""
        if accepted.straight and min(lengths) == self._width:
            return  # It is where it belongs.
        sources = accepted.sources[:, : max(accepted.on_host[0])]
        positions = self._lengths[:, None] + indices(sources.size(1), sources.device)
        self._cache.write(self._new, sources + self._width, positions)

    def keep(self, rows: list[int], width: int) -> None:
        """Go on with ``rows`` only, of which at most ``width`` positions are cached."""
        count = self._keep(rows, width)
        self._memory = keep_rows(self._memory, rows, 2, count)
        if self._memory_mask is not None:
            self._memory_mask = keep_rows(self._memory_mask, rows, 0, count)

    def _keep(self, rows: list[int], width: int) -> int:
        """In the cache; returns how many rows there are then, with what is padding."""
        self._cache.keep(rows, width)
        return len(rows)
