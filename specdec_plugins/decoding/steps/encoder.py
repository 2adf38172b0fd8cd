"""The reading of sources: the encoder, and keys and values of cross-attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from fairseq.models.transformer import TransformerEncoderBase, TransformerModelBase
from fairseq.modules import MultiheadAttention
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from torch import Tensor, nn

from specdec_plugins.decoding.steps.cache import KVCache
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.engine import Engine, bucket
from specdec_plugins.engines.step import CachedStep, Results, Step
from specdec_plugins.host.fairseq_types import EncoderOut
from specdec_plugins.models.attention import among_themselves
from specdec_plugins.models.layers import (
    DecoderLayerRunner,
    EncoderLayerRunner,
    additive,
    position_table,
    positioned,
    source_mask,
    source_memory,
)
from specdec_plugins.models.rows import select_rows

#: (source tokens ``(batch, source)``, their lengths ``(batch,)``) -> the encoder's output.
Encode = Callable[[Tensor, Tensor], EncoderOut]


def frozen_encoder(encoder: TransformerEncoderBase, engine: Engine) -> Encode:
    """Return the fastest function of an encoder whose weights do not change.

    An encoder or layer with another forward pass than fairseq's runs as it is.
    """
    if is_stock(encoder):
        return StockEncoder(encoder, engine)
    return lambda tokens, lengths: encoder(tokens, src_lengths=lengths)


def is_stock(encoder: TransformerEncoderBase) -> bool:
    """Return whether an encoder and its layers have fairseq's own forward passes."""
    return same_methods(encoder, TransformerEncoderBase, "forward", "forward_scriptable") and all(
        same_methods(layer, TransformerEncoderLayerBase, "forward", "residual_connection")
        and type(layer.self_attn) is MultiheadAttention
        and not getattr(layer.self_attn, "use_xformers", False)
        for layer in encoder.layers
    )


def embeds_as_stock(encoder: TransformerEncoderBase) -> bool:
    """Return whether :func:`embeddings` embeds tokens as an encoder does."""
    return same_methods(encoder, TransformerEncoderBase, "forward_embedding")


def embeddings(
    encoder: TransformerEncoderBase, tokens: Tensor, positions: Tensor, table: Tensor | None
) -> Tensor:
    """Return ``(rows, source, channels)`` embeddings by tensor code alone.

    Args:
        tokens: ``(rows, source)``; ``positions``: the same, or ``(source,)``, from 0.
        table: a :func:`position_table`; None: the encoder has no positions.
    """
    x = encoder.embed_scale * encoder.embed_tokens(tokens)
    if table is not None:
        x = positioned(x, positions, table)
    if encoder.layernorm_embedding is not None:
        x = encoder.layernorm_embedding(x)
    return x if encoder.quant_noise is None else encoder.quant_noise(x)


def same_methods(module: nn.Module, stock: type, *methods: str) -> bool:
    """Return whether a module's methods are those of a class of fairseq's."""
    return all(getattr(type(module), name, None) is getattr(stock, name) for name in methods)


class StockEncoder:
    """A stock encoder, whose layers an engine runs."""

    def __init__(self, model: TransformerEncoderBase, engine: Engine) -> None:
        self.model = model
        self._masks = engine.whole_cache
        self._run = engine.prepare(EncoderStep(model))
        #: True if :meth:`masked` embeds tokens as the model does.
        self.recordable = embeds_as_stock(model)

    def __call__(self, tokens: Tensor, lengths: Tensor) -> EncoderOut:
        """See :data:`Encode`."""
        x, embedded = self.model.forward_embedding(tokens)
        padding = tokens.eq(self.model.padding_idx)
        some = bool(padding.any())
        if some:
            x = x.masked_fill(padding[..., None], 0)
        mask = None
        if some or self._masks:
            mask = additive(~padding[:, None, None], x.dtype)
        (states,) = self._run(x, mask)
        return {
            "encoder_out": [states.transpose(0, 1)],
            "encoder_padding_mask": [padding] if some else [],
            "encoder_embedding": [embedded],
            "encoder_states": [],
            "src_tokens": [],
            "src_lengths": [lengths],
        }

    def masked(self, tokens: Tensor, visible: Tensor, mask: Tensor, table: Tensor | None) -> Tensor:
        """Return states ``(source, rows, channels)`` by tensor code alone.

        Args:
            visible: ``(rows, source)`` False for padding; ``mask``: the same, additive.
            table: a :func:`position_table`.
        """
        positions = (visible.cumsum(1) - 1).clamp(min=0)
        x = embeddings(self.model, tokens, positions, table)
        (states,) = self._run(x * visible[..., None], mask)
        return states.transpose(0, 1)


class EncoderStep(Step):
    """The layers of a ``TransformerEncoderBase`` that is not in training."""

    by_token = True

    def __init__(self, encoder: TransformerEncoderBase) -> None:
        super().__init__()
        self.encoder = encoder
        with torch.no_grad():
            self._layers = [EncoderLayerRunner(layer, True) for layer in encoder.layers]
        self.projections = [x for layer in self._layers for x in layer.projections]

    def forward(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor]:
        """Return states of embedded tokens ``x`` ``(batch, source, channels)``, of the same shape.

        ``mask``: ``(batch, 1, 1, source)``, to be added to attention scores.
        """
        if mask is not None:
            mask = mask.expand(-1, -1, x.size(1), -1)
        for runner in self._layers:
            x = runner(x, among_themselves(mask, runner.layer.self_attn))
        return (x if self.encoder.layer_norm is None else self.encoder.layer_norm(x),)

    def example(self, rows: int, tokens: int, others: int) -> tuple[Tensor | None, ...]:
        x = torch.ones(rows, tokens, int(self.encoder.layers[0].embed_dim))
        return x, torch.zeros(rows, 1, 1, tokens)


class MemoryStep(Step):
    """The keys and values of a decoder's cross-attention."""

    # Until the next batch begins; of a large one it is some 20 MB, which need not be copied.
    transient = 1
    by_token = True

    def __init__(self, layers: list[DecoderLayerRunner]) -> None:
        super().__init__()
        self._layers = layers
        self.projections = [layer.memory_input for layer in layers]

    def forward(self, states: Tensor) -> tuple[Tensor]:
        """Return ``(layers, 2, rows, heads, source, dim)`` for the encoder's ``states`` ``(source,
        rows, channels)``."""
        return (source_memory(self._layers, states),)

    def example(self, rows: int, tokens: int, others: int) -> tuple[Tensor | None, ...]:
        attention = self._layers[0].layer.encoder_attn
        return (torch.ones(tokens, rows, int(attention.kdim)),)


class SourceStep(Step):
    """The reading of a source of one row: from tokens to keys and values of cross-attention."""

    transient = 1
    by_token = True
    lookups = ("encoder.embed_tokens.weight",)

    def __init__(self, model: TransformerModelBase) -> None:
        """``model``: one whose encoder :func:`is_stock` and :func:`embeds_as_stock`."""
        super().__init__()
        self.encoder = model.encoder
        self._encode = EncoderStep(model.encoder)
        with torch.no_grad():
            layers = [DecoderLayerRunner(layer, True) for layer in model.decoder.layers]
        self._read = MemoryStep(layers)
        # In int8 a fifth more lines would change, for a twentieth less time.
        self.exact = self._read.projections
        self.projections = [*self._encode.projections, *self.exact]

    def forward(self, tokens: Tensor, positions: Tensor, table: Tensor | None) -> Results:
        """Return ``(layers, 2, 1, heads, source, dim)``.

        Args:
            tokens: ``(1, source)``, EOS included, without padding.
            positions: ``(1, source)`` from 0.
            table: a :func:`position_table`; None: the encoder has no positions.
        """
        x = embeddings(self.encoder, tokens, positions, table)
        (states,) = self._encode(x, None)
        memory: Results = self._read(states.transpose(0, 1))
        return memory

    def example(self, rows: int, tokens: int, others: int) -> tuple[Tensor | None, ...]:
        encoder = self.encoder
        table = position_table(encoder.embed_positions, others + 2, encoder.padding_idx)
        return torch.ones(1, tokens, dtype=torch.long), torch.arange(tokens)[None], table


class SourceReader:
    """The reading of sources one by one, in as few calls as there are sources."""

    def __init__(self, model: TransformerModelBase, engine: Engine) -> None:
        """See :class:`SourceStep`; the engine runs it."""
        encoder = model.encoder
        self._table = position_table(
            encoder.embed_positions, int(encoder.max_source_positions), encoder.padding_idx
        )
        self._positions = torch.arange(int(encoder.max_source_positions))[None]
        self._run = engine.prepare(SourceStep(model))

    def read(self, tokens: Tensor) -> Tensor:
        """Return ``(layers, 2, heads, source, dim)`` for a source ``(source,)``, EOS included."""
        (memory,) = self._run(tokens[None], self._positions[:, : len(tokens)], self._table)
        return memory[:, :, 0]


class CachedModel:
    """A step, the cache of every row's committed tokens, and what the step reads of the source."""

    def __init__(
        self,
        step: CachedStep,
        engine: Engine | None,
        positions: Callable[[int], Tensor | None],
        inputs: Callable[..., tuple[Tensor, ...]],
        reads_sources: bool = True,
    ) -> None:
        """
        Args:
            positions: returns embeddings of so many.
            inputs: returns a step's, to be filled.
            reads_sources: False if :meth:`begin` is always given keys and values.
        """
        self.engine = engine = engine or EagerEngine()
        self._whole = engine.whole_cache
        self._positions = lru_cache(maxsize=8)(positions)
        # An engine keeps its binding to inputs that are filled anew.
        self._empty = lru_cache(maxsize=8)(inputs) if self._whole else inputs
        self._run = engine.prepare(step)
        if reads_sources:
            self._read_source = engine.prepare(MemoryStep(step.layers))
        self.cache = KVCache(step.layers, engine.whole_cache)

    def begin(self, encoder_out: EncoderOut, capacity: int, memory: Tensor | None = None) -> None:
        """Begin a batch.

        Args:
            capacity: the largest number of positions of a row, new ones too.
            memory: keys and values of the source, if another model has computed them.
        """
        states = encoder_out["encoder_out"][0]
        if memory is None:
            (memory,) = self._read_source(states)
        self._memory = memory
        self._mask = source_mask(encoder_out, states.dtype)
        if self._mask is None and self._whole:
            self._mask = states.new_zeros(states.size(1), 1, 1, len(states))
        self.cache.begin(states)
        self._dtype = states.dtype
        self._device = states.device
        # Of few sizes, so that tables of earlier batches will do.
        self._table = self._positions(bucket(16, capacity))

    def source_memory(self) -> Tensor:
        """Return ``(layers, 2, rows, heads, source, dim)`` keys and values of the sources."""
        return self._memory

    def select(self, rows: list[int], width: int, sources: list[int] | None = None) -> None:
        """Go on with ``rows``, in this order; some may be left out, others repeated.

        Args:
            width: positions that they have cached, at most.
            sources: rows that have read the same sources; None: these.
        """
        self.cache.select(rows, width)
        if sources is None:
            sources = rows
        self._memory = select_rows(self._memory, sources, 2)
        if self._mask is not None:
            self._mask = select_rows(self._mask, sources)


def example_of(
    layers: list[DecoderLayerRunner], rows: int, tokens: int, source: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return an example's tokens and positions, keys and values of the source, and its mask."""
    return (
        torch.ones(rows, tokens, dtype=torch.long),
        torch.arange(tokens).repeat(rows, 1),
        torch.zeros(len(layers), 2, rows, layers[0].heads, source, layers[0].head_dim),
        torch.zeros(rows, 1, 1, source),
    )
