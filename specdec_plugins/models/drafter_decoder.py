"""The base of all drafters' decoders: embedded slots in, states of slots out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import FairseqDropout, LayerNorm, PositionalEmbedding
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from torch import Tensor, nn

from specdec_plugins.host.fairseq_types import EncoderOut
from specdec_plugins.models.attention import Attend
from specdec_plugins.models.lattice import LogitScorer, SlotScorer
from specdec_plugins.models.layers import DecoderLayerRunner, KeysValues, Projection, position_table

if TYPE_CHECKING:
    from specdec_plugins.models.layers import Positions


class Slots(NamedTuple):
    """The slots of a pass, prefix and blocks, and what they read."""

    #: ``(batch, slots)``; anything where ``is_mask``.
    tokens: Tensor
    is_mask: Tensor
    #: ``(batch, slots)`` in the target.
    positions: Tensor
    #: Embeddings of positions, those of :meth:`DrafterDecoder.positions`.
    table: Tensor
    memory: KeysValues
    #: ``(batch, 1, 1, source)`` additive mask of the source's padding.
    memory_mask: Tensor | None
    #: ``(batch, positions, channels)`` soft copies of the source, for drafters that make them.
    copies: Tensor | None
    #: ``(batch, n, channels)`` for the first n slots, read by :meth:`DrafterDecoder.feature_reader`
    #: from the verifier's states.
    features: Tensor | None


class DrafterDecoder(nn.Module):
    """A non-autoregressive decoder over prefix and masks; subclasses embed and attend."""

    embed_positions: Positions
    layer_norm: nn.Module | None
    #: True if masks are soft copies of the source.
    copies_source = False
    #: True where prefix slots do not see the block, so that their states can be cached.
    causal: bool
    #: ``(n,)`` the tokens of drafts, without pad; None: all. The output layer is the larger part of
    #: a draft's arithmetic, and most written tokens are frequent ones (FR-Spec, Zhao et al., ACL
    #: 2025). Training does not depend on it.
    draft_vocabulary: Tensor | None

    def __init__(self, cfg: TransformerConfig, padding: int, entries: int) -> None:
        """``entries``: of the target dictionary."""
        super().__init__()
        self.register_buffer("draft_vocabulary", None)
        #: Width of the states.
        self.channels = dim = int(cfg.decoder.embed_dim)
        self.padding = padding
        self.entries = entries
        self.embed_positions = PositionalEmbedding(
            cfg.max_target_positions, dim, padding, learned=cfg.decoder.learned_pos
        )
        self.layers = nn.ModuleList(
            TransformerDecoderLayerBase(cfg) for _ in range(cfg.decoder.layers)
        )
        self.layer_norm = LayerNorm(dim) if cfg.decoder.normalize_before else None
        self.dropout_module = FairseqDropout(cfg.dropout, module_name=type(self).__name__)

    def _add_tables(self, embed_tokens: nn.Embedding, tied: bool) -> None:
        """Add a token table and an output projection, which may be the same; last of all."""
        self.embed_tokens = embed_tokens
        self.output_projection = nn.Linear(self.channels, self.entries, bias=False)
        if tied:
            self.output_projection.weight = embed_tokens.weight
        else:
            nn.init.normal_(self.output_projection.weight, std=self.channels**-0.5)

    def embed(self, slots: Slots) -> Tensor:
        """Return ``(batch, slots, channels)`` input states."""
        raise NotImplementedError

    def feature_reader(self) -> Projection:
        """Return the projection of the verifier's states, in decoders that read them."""
        raise NotImplementedError

    def before_layer(self, x: Tensor, slots: Slots) -> Tensor:
        """Change every layer's input."""
        return x

    def output_layer(self, x: Tensor) -> Tensor:
        """Return logits ``(…, vocab)``."""
        return self.tables.output_projection(x)

    def slot_logits(self, x: Tensor, previous: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Return logits ``(…, vocab)`` of block slots with states ``x`` ``(…, channels)``.

        Args:
            _previous: ``(…)`` the token before each slot, EOS before the first.
            _hidden: ``(…)`` True where training hides that token.
        """
        return self.output_layer(x)

    def hidden(self, seeds: Tensor | None, slots: Tensor) -> Tensor | None:
        """Return ``(batch, blocks, slots)`` True where training hides the token before a slot, by
        each sentence's seed; None without seeds, and in decoders that never look at it."""
        return None

    def runners(self, frozen: bool = False) -> list[DecoderLayerRunner]:
        """Return the layers, ready to run with their present weights."""
        return [DecoderLayerRunner(layer, frozen) for layer in self.layers]

    @property
    def tables(self) -> Any:
        """The module that holds ``embed_tokens`` and ``output_projection``."""
        return self

    def slot_scorer(self) -> SlotScorer:
        """Return the scorer of a block's slots, with the present weights."""
        return LogitScorer(self.slot_projection(), self.draft_vocabulary)

    def slot_projection(self) -> Projection:
        """Return the projection to logits of the draft vocabulary, or of all tokens, where pad's
        is so low that it is never chosen."""
        weight = self.tables.output_projection.weight.detach()
        if self.draft_vocabulary is not None:
            return Projection(weight[self.draft_vocabulary])
        ban = weight.new_zeros(len(weight))
        ban[self.padding] = torch.finfo(ban.dtype).min / 2
        return Projection(weight, ban)

    def copies(
        self, _encoder_out: EncoderOut, _mask: Tensor | None, _table: Tensor
    ) -> Tensor | None:
        """Return soft copies of the source, in decoders that make them."""
        return None

    def positions(self, length: int) -> Tensor:
        """Return embeddings of positions ``(length, channels)``."""
        table = position_table(self.embed_positions, length, self.padding)
        assert table is not None
        return table

    def run(
        self,
        x: Tensor,
        slots: Slots,
        layers: Sequence[tuple[DecoderLayerRunner, Attend]],
        only: Tensor | None = None,
    ) -> Tensor:
        """Run all layers over embedded slots ``x``; return the states before the output layer.

        Args:
            layers: each layer with its self-attention.
            only: the last layer's slots to compute; see :class:`DecoderLayerRunner`.
        """
        wanted = [*[None] * (len(layers) - 1), only]
        for (runner, attend), source, some in zip(layers, slots.memory, wanted):
            x = self.before_layer(x, slots)
            x = runner(x, attend, source, slots.memory_mask, some)
        return x if self.layer_norm is None else self.layer_norm(x)
