"""``block_causal``: a drafter whose prefix is causal, so that it can be cached.

Unlike in the published ``block`` drafter, prefix slots do not see the block (their states are
cached), masks have an embedding, and embeddings are scaled and positions added as in the verifier,
so that a copied encoder computes the same. The encoder and the token table may be the verifier's,
frozen, and each prefix slot may read the verifier's decoder state for its token (after EAGLE, Li
et al., ICML 2024).
"""

# No postponed annotations: fairseq reads the config fields' types at run time.

import math
from argparse import Namespace
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import register_model
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerEncoderBase,
    TransformerModelBase,
)
from fairseq.tasks import FairseqTask
from fairseq.utils import get_available_activation_fns
from omegaconf import II
from torch import Tensor, nn

from specdec_plugins.data.block_mask import HIDING, sentence_uniforms
from specdec_plugins.models.drafter import Drafter, token_tables
from specdec_plugins.models.drafter_decoder import DrafterDecoder, Slots
from specdec_plugins.models.lattice import PreviousTokenHead, SlotScorer, TokenChain
from specdec_plugins.models.layers import Projection, positioned, projection


def option_of(default: object, text: str) -> Any:
    """Return the field of an option with its help text."""
    return field(default=default, metadata={"help": text})


@dataclass
class BlockCausalConfig(FairseqDataclass):
    """Options of ``--arch block_causal``."""

    block_size: Optional[int] = II("task.block_size")
    max_source_positions: int = II("task.max_source_positions")
    max_target_positions: int = II("task.max_target_positions")
    encoder_layers: int = option_of(6, "encoder layers")
    encoder_embed_dim: int = option_of(512, "encoder width")
    encoder_ffn_embed_dim: int = option_of(2048, "encoder FFN width")
    encoder_attention_heads: int = option_of(8, "encoder heads")
    encoder_normalize_before: bool = option_of(False, "pre-norm encoder")
    encoder_learned_pos: bool = option_of(False, "learned source positions")
    decoder_layers: int = option_of(2, "decoder layers")
    decoder_embed_dim: int = option_of(512, "decoder width")
    decoder_ffn_embed_dim: int = option_of(2048, "decoder FFN width")
    decoder_attention_heads: int = option_of(8, "decoder heads")
    decoder_normalize_before: bool = option_of(False, "pre-norm decoder")
    decoder_learned_pos: bool = option_of(False, "learned target positions")
    activation_fn: ChoiceEnum(get_available_activation_fns()) = field(  # type: ignore[valid-type]
        default="relu", metadata={"help": "activation of the FFN"}
    )
    dropout: float = option_of(0.1, "dropout probability")
    attention_dropout: float = option_of(0.0, "dropout of attention weights")
    activation_dropout: float = option_of(0.0, "dropout inside the FFN")
    share_all_embeddings: bool = option_of(False, "one table for source, target and output")
    share_decoder_input_output_embed: bool = option_of(False, "one table for target and output")
    layernorm_embedding: bool = option_of(False, "layer norm on the encoder's embeddings")
    no_scale_embedding: bool = option_of(False, "do not scale embeddings by sqrt(width)")
    init_encoder_from: Optional[str] = option_of(None, "verifier whose encoder is copied at first")
    share_verifier_encoder: bool = option_of(
        False, "read the verifier's encoder and target table, frozen (needs --AR-path)"
    )
    verifier_features: bool = option_of(
        False, "read the verifier's decoder state of each prefix token (needs --AR-path)"
    )
    verifier_feature_layers: Optional[str] = option_of(
        None, "with it, also those after these layers, counted from 1: 1,2"
    )
    previous_token_head: bool = option_of(False, "choose each token knowing the one before it")
    verifier_embed_dim: int = option_of(512, "width of the verifier, for --verifier-features")


class BlockCausalDecoder(DrafterDecoder):
    """Causal over the prefix, bidirectional inside the block."""

    causal = True
    mask_embedding: nn.Parameter

    def __init__(
        self,
        cfg: BlockCausalConfig,
        layers_cfg: TransformerConfig,
        padding: int,
        embed_tokens: nn.Embedding | None,
        vocabulary: int,
    ) -> None:
        """``embed_tokens``: None to read the verifier's tables."""
        super().__init__(layers_cfg, padding, vocabulary)
        dim = self.channels
        self.embed_scale = 1.0 if cfg.no_scale_embedding else math.sqrt(dim)
        self.mask_embedding = nn.Parameter(torch.empty(dim))
        nn.init.normal_(self.mask_embedding, std=self.embed_scale * dim**-0.5)
        self.feature_projection = None
        if cfg.verifier_features:
            channels = (1 + len(feature_layers(cfg))) * cfg.verifier_embed_dim
            self.feature_projection = nn.Linear(channels, dim, bias=False)
        self.previous = PreviousTokenHead(dim) if cfg.previous_token_head else None
        # In a tuple, so that it is no submodule.
        self._tables: tuple[nn.Module, ...] = ()
        if embed_tokens is not None:
            self._add_tables(
                embed_tokens, cfg.share_all_embeddings or cfg.share_decoder_input_output_embed
            )
            self._tables = (self,)

    @property
    def tables(self) -> Any:
        return self._tables[0]

    def embed(self, slots: Slots) -> Tensor:
        x = self._embedded(slots.tokens)
        features = slots.features
        if features is not None:
            count = features.size(1)
            if count == x.size(1):
                # For engines a sum is cheaper than writing to a part.
                x = x + features
            else:
                x[:, :count].add_(features)
        x = torch.where(slots.is_mask[..., None], self.mask_embedding, x)
        return self.dropout_module(positioned(x, slots.positions, slots.table))

    def feature_reader(self) -> Projection:
        assert self.feature_projection is not None
        return projection(self.feature_projection)

    def hidden(self, seeds: Tensor | None, slots: Tensor) -> Tensor | None:
        if self.previous is None or seeds is None:
            return None
        return sentence_uniforms(seeds, HIDING, *slots.shape[1:]) < self.previous.UNKNOWN

    def slot_logits(self, x: Tensor, previous: Tensor, hidden: Tensor | None = None) -> Tensor:
        if self.previous is None:
            return self.output_layer(x)
        embedded = self._embedded(previous)
        if hidden is not None:
            embedded = torch.where(hidden[..., None], self.previous.unknown, embedded)
        return self.output_layer(self.previous(x, embedded))

    def slot_scorer(self) -> SlotScorer:
        if self.previous is None:
            return super().slot_scorer()
        return TokenChain(
            self.previous,
            embedded=self.embed_scale * self.tables.embed_tokens.weight,
            output=self.tables.output_projection.weight,
            logits=self.slot_projection(),
            vocabulary=self.draft_vocabulary,
        )

    def _embedded(self, tokens: Tensor) -> Tensor:
        return self.embed_scale * self.tables.embed_tokens(tokens)


@register_model("block_causal", dataclass=BlockCausalConfig)
class BlockCausalDrafter(Drafter):
    """The default drafter for new training."""

    decoder: BlockCausalDecoder
    decoder_class = BlockCausalDecoder

    def __init__(
        self,
        cfg: BlockCausalConfig,
        encoder: TransformerEncoderBase | None,
        decoder: BlockCausalDecoder,
        eos: int,
    ) -> None:
        assert cfg.block_size is not None  # the task sees to it
        super().__init__(encoder, decoder, cfg.block_size, eos)
        self.cfg = cfg
        self.uses_verifier_features = cfg.verifier_features
        self.feature_layers = feature_layers(cfg)

    @classmethod
    def build_model(cls, cfg: BlockCausalConfig, task: FairseqTask) -> "BlockCausalDrafter":
        """Build from the config; a shared encoder is attached later, with its verifier."""
        cls.check_task(task)
        source = task.source_dictionary
        target = task.target_dictionary
        # A dataclass, a namespace or a node of omegaconf.
        fields = {name: getattr(cfg, name) for name in BlockCausalConfig.__dataclass_fields__}
        layers_cfg = TransformerConfig.from_namespace(Namespace(**fields))
        encoder = None
        embed_tokens = None
        if not cfg.share_verifier_encoder:
            encoder_table, embed_tokens = token_tables(source, target, layers_cfg)
            encoder = TransformerEncoderBase(layers_cfg, source, encoder_table)
        elif cfg.init_encoder_from:
            raise ValueError("--init-encoder-from: nothing to copy with --share-verifier-encoder")
        return cls(
            cfg,
            encoder,
            cls.decoder_class(cfg, layers_cfg, target.pad(), embed_tokens, len(target)),
            target.eos(),
        )

    def attach_verifier(self, verifier: TransformerModelBase) -> None:
        cfg = self.cfg
        decoder = verifier.decoder
        width = decoder.output_embed_dim
        widths = []
        if cfg.verifier_features:
            widths.append(("--verifier-embed-dim", cfg.verifier_embed_dim, width))
        if cfg.share_verifier_encoder:
            read = verifier.encoder.layers[0].embed_dim
            widths.append(("--encoder-embed-dim", cfg.encoder_embed_dim, read))
            widths.append(("--decoder-embed-dim", cfg.decoder_embed_dim, width))
        for flag, value, wanted in widths:
            if value != wanted:
                raise ValueError(f"{flag} {value}: the verifier's is {wanted}")
        if max(self.feature_layers, default=0) > len(decoder.layers):
            raise ValueError(
                f"--verifier-feature-layers {cfg.verifier_feature_layers}: the verifier has "
                f"{len(decoder.layers)}"
            )
        super().attach_verifier(verifier)
        if cfg.share_verifier_encoder:
            self.decoder._tables = (verifier.decoder,)


def feature_layers(cfg: BlockCausalConfig) -> tuple[int, ...]:
    """Return the verifier's layers after which states are read beside its last, in their order."""
    text = cfg.verifier_feature_layers
    if not text:
        return ()
    numbers = text.split(",")
    if not cfg.verifier_features or not all(n.isdecimal() and int(n) > 0 for n in numbers):
        raise ValueError(
            f"--verifier-feature-layers {text}: must be numbers from 1 on, such as 1,2, and needs "
            "--verifier-features"
        )
    return tuple(sorted(set(map(int, numbers))))
