"""``block``: the drafter of the published SpecDec (Xia et al., EMNLP 2023 Findings).

State dicts and outputs are those of the published code: no embedding scale, prefix and block fully
bidirectional, positions added again before every decoder layer, masks are ``<unk>``, and with
``--src-embedding-copy`` a mask's input is a soft copy of the source's embeddings. Prefixes cannot
be cached; ``block_causal`` is for new training.
"""

from __future__ import annotations

import logging
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import ClassVar

import torch
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerEncoderBase,
    TransformerModel,
)
from fairseq.modules.transformer_sentence_encoder import init_bert_params
from fairseq.tasks import FairseqTask
from torch import Tensor, nn

from specdec_plugins.host.fairseq_types import EncoderOut
from specdec_plugins.models.drafter import Drafter, token_tables
from specdec_plugins.models.drafter_decoder import DrafterDecoder, Slots
from specdec_plugins.models.layers import positioned

logger = logging.getLogger(__name__)

#: Settings of fairseq's Transformer that are refused.
UNSUPPORTED = (
    "no_token_positional_embeddings",
    "adaptive_softmax_cutoff",
    "adaptive_input",
    "cross_self_attention",
    "decoder_embed_path",
    "decoder_layerdrop",
    "encoder_embed_path",
    "no_cross_attention",
    "no_decoder_final_norm",
    "quant_noise_pq",
    "quant_noise_scalar",
)


class BlockDecoder(DrafterDecoder):
    """Bidirectional over prefix and block."""

    causal = False
    version: Tensor

    def __init__(self, cfg: TransformerConfig, args: Namespace, embed_tokens: nn.Embedding) -> None:
        super().__init__(cfg, int(embed_tokens.padding_idx or 0), embed_tokens.num_embeddings)
        self.register_buffer("version", torch.Tensor([3]))
        self._add_tables(embed_tokens, cfg.share_decoder_input_output_embed)
        self.copies_source = bool(args.src_embedding_copy)
        self.copy_attn = None
        if self.copies_source:
            self.copy_attn = nn.Linear(self.channels, self.channels, bias=False)
        self.mask_token = int(args.mask_token)

    def copies(self, encoder_out: EncoderOut, mask: Tensor | None, table: Tensor) -> Tensor | None:
        if self.copy_attn is None:
            return None
        inputs = encoder_out["encoder_inputs"][0]
        scores = self.copy_attn(table) @ inputs.transpose(1, 2)
        if mask is not None:
            scores = scores + mask[:, 0]
        return scores.softmax(-1) @ encoder_out["encoder_embedding"][0]

    def embed(self, slots: Slots) -> Tensor:
        # As published, a genuine <unk> of the prefix cannot be told from a mask.
        tokens = slots.tokens.masked_fill(slots.is_mask, self.mask_token)
        x = self.embed_tokens(tokens)
        copies = slots.copies
        if copies is not None:
            index = slots.positions.clamp(max=copies.size(1) - 1)[..., None]
            copies = copies.gather(1, index.expand(-1, -1, x.size(-1)))
            x = torch.where((tokens == self.mask_token)[..., None], copies, x)
        return x

    def before_layer(self, x: Tensor, slots: Slots) -> Tensor:
        return self.dropout_module(positioned(x, slots.positions, slots.table))


class BlockEncoder(TransformerEncoderBase):
    """fairseq's encoder without embedding scale; it also returns its own input states."""

    def forward(
        self, src_tokens: Tensor, src_lengths: Tensor | None = None, **kwargs: object
    ) -> EncoderOut:
        encoder_out = super().forward(src_tokens, src_lengths=src_lengths, **kwargs)
        words = encoder_out["encoder_embedding"][0]
        encoder_out["encoder_inputs"] = [words + self.embed_positions(src_tokens)]
        return encoder_out


@register_model("block")
class BlockDrafter(Drafter):
    """The published drafter."""

    exact_encoder = False
    #: Fields of a checkpoint's configuration beside those of fairseq's Transformer.
    saved_fields: ClassVar[dict[str, type]] = {
        "block_size": int,
        "src_embedding_copy": bool,
        "apply_bert_init": bool,
    }

    def __init__(
        self,
        args: Namespace,
        encoder: BlockEncoder,
        decoder: BlockDecoder,
        block_size: int,
        eos: int,
    ) -> None:
        super().__init__(encoder, decoder, block_size, eos)
        self.args = args
        if args.apply_bert_init and not decoder.output_projection.weight.is_meta:
            self.apply(init_bert_params)

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add fairseq's Transformer flags, and the drafter's own."""
        TransformerModel.add_args(parser)
        parser.add_argument(
            "--src-embedding-copy",
            action="store_true",
            help="a mask's input is a soft copy of the source embeddings",
        )
        parser.add_argument(
            "--apply-bert-init",
            action="store_true",
            help="draw Linear and Embedding weights from N(0, 0.02)",
        )
        parser.add_argument(
            "--init-encoder-from",
            metavar="FILE",
            help="verifier checkpoint whose encoder is copied at the start",
        )

    @classmethod
    def build_model(cls, args: Namespace, task: FairseqTask) -> BlockDrafter:
        """Build from the namespace."""
        cls.check_task(task)
        block(args)
        if getattr(args, "layernorm_embedding", False):
            logger.warning("--layernorm-embedding does nothing with --arch block, as published")
        refused = [name for name in UNSUPPORTED if getattr(args, name, None)]
        refused += [
            name
            for name in ("decoder_input_dim", "decoder_output_dim")
            if getattr(args, name, None) not in (None, args.decoder_embed_dim)
        ]
        if refused:
            raise ValueError(
                f"--{refused[0].replace('_', '-')}: not supported by --arch block; leave it out"
            )
        source = task.source_dictionary
        target = task.target_dictionary
        args.mask_token = target.unk()
        args.no_scale_embedding = True
        args.layernorm_embedding = False
        cfg = TransformerConfig.from_namespace(args)
        cfg.share_decoder_input_output_embed |= cfg.share_all_embeddings
        encoder_table, decoder_table = token_tables(source, target, cfg)
        args.block_size = int(getattr(args, "block_size", None) or task.cfg.block_size)
        return cls(
            args,
            BlockEncoder(cfg, source, encoder_table),
            BlockDecoder(cfg, args, decoder_table),
            args.block_size,
            target.eos(),
        )

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Accept what the published code saved.

        A file without any decoder is an encoder initialisation: the decoder keeps its values. A
        pre-norm drafter initialised that way was trained and saved without its final LayerNorm.
        """
        weights = self.state_dict()
        if not any(key.startswith("decoder.") for key in state_dict):
            logger.warning("encoder initialisation: the decoder starts from random weights")
            # The verifier's positions may be sinusoidal, and then are not in its file.
            initial = ("decoder.", "encoder.embed_positions.weight")
            for key in weights:
                if key.startswith(initial):
                    state_dict.setdefault(key, weights[key])
        super().upgrade_state_dict_named(state_dict, name)
        if self.decoder.layer_norm is not None and "decoder.layer_norm.weight" not in state_dict:
            self.decoder.layer_norm = None
        state_dict["decoder.version"] = torch.Tensor([3])


@register_model_architecture("block", "block")
def block(args: Namespace) -> None:
    """Fill in the published defaults."""
    _fill_in(args, {"src_embedding_copy": False, "apply_bert_init": False})
    for side in ("encoder", "decoder"):
        _fill_in(args, {f"{side}_embed_dim": 512, f"{side}_layers": 6})
        dim = getattr(args, f"{side}_embed_dim")
        _fill_in(args, {f"{side}_ffn_embed_dim": 4 * dim, f"{side}_attention_heads": dim // 64})


@register_model_architecture("block", "block_6e6d512")
@register_model_architecture("block", "block_base")
def block_base(args: Namespace) -> None:
    """Fill in the published defaults; the FFN and the heads do not follow the width."""
    for side in ("encoder", "decoder"):
        _fill_in(args, {f"{side}_ffn_embed_dim": 2048, f"{side}_attention_heads": 8})
    block(args)


def _fill_in(args: Namespace, defaults: Mapping[str, object]) -> None:
    for name, value in defaults.items():
        if getattr(args, name, None) is None:
            setattr(args, name, value)
