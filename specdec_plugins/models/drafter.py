"""What all drafters share: blocks in, logits of their slots out.

A drafter's decoder input is a row's prefix ``y_0 … y_{p-1}`` (no BOS) followed by k masks; slot t
predicts ``y_t`` itself. In training one pass may hold several blocks of a sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerEncoderBase,
    TransformerModelBase,
)
from fairseq.tasks import FairseqTask
from torch import Tensor

from specdec_plugins.data.block_mask import GLANCING, Blocks, glance, sentence_uniforms
from specdec_plugins.host.fairseq_types import EncoderOut
from specdec_plugins.host.packed_encoder import REDUNDANT
from specdec_plugins.models.drafter_decoder import DrafterDecoder
from specdec_plugins.models.layers import with_layers
from specdec_plugins.models.training_pass import (
    SlotReader,
    TrainingPass,
    logits_themselves,
    no_logits,
)

VOCABULARY = "decoder.draft_vocabulary"
"""The name of a drafter's draft vocabulary among its weights."""


def check_shared_embeddings(source: Dictionary, target: Dictionary, cfg: TransformerConfig) -> None:
    """
    Raises:
        ValueError: source and target cannot have the same table.
    """
    if source != target:
        raise ValueError("--share-all-embeddings requires a joined dictionary")
    widths = cfg.encoder.embed_dim, cfg.decoder.embed_dim
    if widths[0] != widths[1]:
        raise ValueError(
            f"--share-all-embeddings: --encoder-embed-dim {widths[0]} and --decoder-embed-dim "
            f"{widths[1]} must be the same"
        )


@dataclass
class DrafterOutput:
    """A training pass: tensors over ``(batch, blocks, slots)``, but for the values."""

    values: tuple[Tensor, ...]
    """What was kept of the logits of the n slots of ``blocks.scored`` that are True, each ``(n,
    …)`` in its order: only they have a target, and the vocabulary is by far the most of the work.
    """
    blocks: Blocks
    scored: Tensor
    """Slots in the loss: those with a target and not revealed by glancing."""
    glanced_correct: Tensor
    """Slots that the glancing pass (or this one, without glancing) predicted right."""


class Drafter(BaseFairseqModel):
    """Base of ``block`` and ``block_causal``."""

    encoder: TransformerEncoderBase | None
    decoder: DrafterDecoder
    uses_verifier_features = False
    feature_layers: tuple[int, ...] = ()
    """The verifier's layers, counted from 1, after which states are read beside its last."""
    exact_encoder = True
    """Whether its encoder can be a verifier's, so that it computes the same."""

    def __init__(
        self,
        encoder: TransformerEncoderBase | None,
        decoder: DrafterDecoder,
        block_size: int,
        eos: int,
    ) -> None:
        super().__init__()
        self.eos = eos
        self.begin = eos
        """What stands before a target's first token: EOS, or the language in its place."""
        self.encoder = encoder
        self.decoder = decoder
        self.block_size = block_size
        # In a tuple, so that it is no submodule: its weights are neither trained nor saved.
        self._verifier: tuple[TransformerModelBase] | tuple[()] = ()

    @staticmethod
    def check_task(task: FairseqTask) -> None:
        """
        Raises:
            ValueError: ``task`` cannot generate with a drafter.
        """
        if not hasattr(task, "verifier"):
            raise ValueError(
                "a drafter needs --task translation_specdec (from_pretrained: name the drafter's "
                "checkpoint before the verifier's)"
            )

    @property
    def target_vocabulary(self) -> int | None:
        """Entries of this drafter's own target table; None where it reads the verifier's."""
        table = getattr(self.decoder, "embed_tokens", None)
        return None if table is None else int(table.num_embeddings)

    def attach_verifier(self, verifier: TransformerModelBase) -> None:
        """Let the drafter read the verifier's encoder, tables and states; it never changes them.

        The verifier is moved to where the drafter is, and takes its dtype.
        """
        weight = next(self.parameters())
        self._verifier = (verifier.to(weight.device, weight.dtype),)

    @property
    def reads_verifier(self) -> bool:
        """Whether it cannot do without the verifier's encoder, tables or states."""
        return self.encoder is None or self.uses_verifier_features

    @property
    def verifier(self) -> TransformerModelBase:
        """The attached verifier.

        Raises:
            ValueError: none is attached.
        """
        if not self._verifier:
            raise ValueError("this drafter needs its verifier: give it with --AR-path")
        return self._verifier[0]

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Accept what another version of fairseq saved, which may be more or less by what holds
        nothing: a packed copy, or the placeholder of a table of sinusoidal positions. A draft
        vocabulary is as long as it was saved."""
        super().upgrade_state_dict_named(state_dict, name)
        saved = state_dict.get(f"{name}.{VOCABULARY}" if name else VOCABULARY)
        if saved is not None:
            self._check_draft_vocabulary(saved)
            saved = torch.empty_like(saved, device=next(self.parameters()).device)
        self.decoder.draft_vocabulary = saved
        own = self.state_dict()
        for key in [key for key in state_dict if key not in own and REDUNDANT.search(key)]:
            del state_dict[key]
        for key in own:
            if key.endswith("._float_tensor"):
                state_dict.setdefault(key, own[key])

    def _check_draft_vocabulary(self, tokens: Tensor) -> None:
        """
        Raises:
            ValueError: they are none of the target dictionary.
        """
        entries = self.decoder.entries
        if tokens.dtype != torch.long or tokens.dim() != 1 or not 2 <= len(tokens) <= entries:
            raise ValueError(f"{VOCABULARY} is no list of 2 to {entries} tokens")
        listed = set(tokens.tolist())
        if min(listed) < 0 or max(listed) >= entries or len(listed) < len(tokens):
            raise ValueError(f"{VOCABULARY} has a token twice, or one that the dictionary lacks")
        if self.decoder.padding in listed or self.eos not in listed:
            raise ValueError(f"{VOCABULARY} has the padding symbol, or not the sentence's end")

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: object, **kwargs: object) -> Drafter:
        # The verifier follows to every device and dtype.
        if self._verifier:
            self._verifier[0]._apply(fn)
        return super()._apply(fn, *args, **kwargs)

    def max_positions(self) -> tuple[int | None, int]:
        """Longest source and target, in tokens, that batches may hold.

        None, fairseq's word for no bound, for the source of a drafter that reads an encoder which
        is not attached yet: fairseq asks its models before it builds the generator from them.
        """
        encoder = self.encoder
        if encoder is None and self._verifier:
            encoder = self._verifier[0].encoder
        source = None if encoder is None else int(encoder.max_positions())
        return source, int(self.decoder.embed_positions.max_positions) - self.block_size

    def encode(self, src_tokens: Tensor, src_lengths: Tensor) -> EncoderOut:
        """Return the encoder's output, in fairseq's form; a shared verifier encoder is frozen."""
        if self.encoder is not None:
            return self.encoder(src_tokens, src_lengths=src_lengths)
        with torch.no_grad():
            return self.verifier.encoder(src_tokens, src_lengths=src_lengths)

    @torch.no_grad()
    def verifier_states(
        self, src_tokens: Tensor, src_lengths: Tensor, target: Tensor, encoder_out: EncoderOut
    ) -> tuple[Tensor, Tensor]:
        """``(batch, length, channels)``: row t is the verifier's state that predicts ``y_t``; and
        that with the states after ``feature_layers``, of which a drafter's features are made.

        ``encoder_out`` is this drafter's, and is read where it is the verifier's too.
        """
        verifier = self.verifier
        if self.encoder is not None:
            encoder_out = verifier.encoder(src_tokens, src_lengths=src_lengths)
        shifted = torch.cat([torch.full_like(target[:, :1], self.begin), target[:, :-1]], dim=1)
        states, extra = verifier.decoder.extract_features(shifted, encoder_out=encoder_out)
        assert extra is not None
        # The first of them is what the first layer is given.
        inner = [extra["inner_states"][layer].transpose(0, 1) for layer in self.feature_layers]
        return states, with_layers(states, inner)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor,
        target: Tensor,
        cuts: Tensor,
        glancing_ratio: float = 0.0,
        read: SlotReader = logits_themselves,
        with_verifier: bool = False,
        seeds: Tensor | None = None,
    ) -> DrafterOutput:
        """Score the blocks of ``target`` ``(batch, length)`` after ``cuts`` ``(batch, blocks)``.

        Args:
            glancing_ratio: part of the wrong slots to reveal; 0 makes a single pass.
            read: what is kept of the logits. It draws nothing, and changes nothing.
            with_verifier: ``read`` is also given the verifier's states, for labels.
            seeds: ``(batch,)`` of which each sentence's noise is drawn; None draws them first.
        """
        if seeds is None:
            seeds = torch.randint(2**63 - 1, (len(target),), device=target.device)
        blocks = Blocks.cut(target, cuts, self.block_size, self.decoder.padding)
        encoder_out = self.encode(src_tokens, src_lengths)
        states = features = None
        if with_verifier or self.uses_verifier_features:
            inputs = src_tokens, src_lengths, target, encoder_out
            states, inner = self.verifier_states(*inputs)
            if self.uses_verifier_features:
                features = self.decoder.feature_reader()(inner)
        training_pass = TrainingPass(
            self.decoder,
            target,
            blocks,
            encoder_out,
            features,
            self.begin,
            hiding=seeds if self.training else None,
            labels=states if with_verifier else None,
        )
        revealed = torch.zeros_like(blocks.scored)
        if glancing_ratio > 0:
            with torch.no_grad():
                (best,) = training_pass.score(revealed, no_logits)
            # Else older versions of torch give the second pass copies of weights that autocast
            # made in the first, and no gradient reaches the weights.
            torch.clear_autocast_cache()
            predicted = blocks.spread(best)
            uniforms = sentence_uniforms(seeds, GLANCING, *predicted.shape[1:])
            revealed = glance(blocks.gold, predicted, blocks.scored, glancing_ratio, uniforms)
        best, *values = training_pass.score(revealed, read)
        if glancing_ratio <= 0:
            predicted = blocks.spread(best)
        correct = (predicted == blocks.gold) & blocks.scored
        return DrafterOutput(tuple(values), blocks, blocks.scored & ~revealed, correct)
