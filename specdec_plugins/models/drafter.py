"""The base of all drafters: blocks in, logits of their slots out.

A drafter's decoder input is a row's prefix ``y_0 … y_{p-1}`` (no BOS) followed by k masks; slot t
predicts ``y_t`` itself. In training one pass may hold several blocks of a sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import (
    Embedding,
    TransformerConfig,
    TransformerEncoderBase,
    TransformerModelBase,
)
from fairseq.tasks import FairseqTask
from torch import Tensor, nn

from specdec_plugins.data.block_mask import GLANCING, Blocks, glance, sentence_uniforms
from specdec_plugins.host.checkpoints import REDUNDANT
from specdec_plugins.host.fairseq_types import EncoderOut, Sample
from specdec_plugins.models.drafter_decoder import DrafterDecoder
from specdec_plugins.models.layers import with_layers
from specdec_plugins.models.training_pass import SlotReader, TrainingPass

#: The name of a drafter's draft vocabulary among its weights.
VOCABULARY = "decoder.draft_vocabulary"


def token_tables(
    source: Dictionary, target: Dictionary, cfg: TransformerConfig
) -> tuple[nn.Embedding, nn.Embedding]:
    """Return new tables for the source and the target, which may be the same."""
    table = Embedding(len(source), cfg.encoder.embed_dim, source.pad())
    if not cfg.share_all_embeddings:
        return table, Embedding(len(target), cfg.decoder.embed_dim, target.pad())
    if source != target or cfg.encoder.embed_dim != cfg.decoder.embed_dim:
        raise ValueError(
            "--share-all-embeddings requires a joined dictionary, and --encoder-embed-dim and "
            "--decoder-embed-dim of the same size"
        )
    return table, table


@dataclass
class DrafterOutput:
    """The results of a training pass."""

    #: ``(n, …)`` each: the reader's results for the n slots where ``blocks.scored``.
    values: tuple[Tensor, ...]
    blocks: Blocks
    #: ``(batch, blocks, slots)`` True for slots in the loss: not revealed by glancing.
    scored: Tensor
    #: ``(batch, blocks, slots)`` True where the glancing pass, or without glancing this one,
    #: predicted right.
    glanced_correct: Tensor


class Drafter(BaseFairseqModel):
    """Base of ``block`` and ``block_causal``."""

    encoder: TransformerEncoderBase | None
    decoder: DrafterDecoder
    uses_verifier_features = False
    #: The verifier's layers, counted from 1, after which states are read beside its last.
    feature_layers: tuple[int, ...] = ()
    #: True if its encoder can be a verifier's, so that it computes the same.
    exact_encoder = True

    def __init__(
        self,
        encoder: TransformerEncoderBase | None,
        decoder: DrafterDecoder,
        block_size: int,
        eos: int,
    ) -> None:
        super().__init__()
        self.eos = eos
        #: The token before a target's first one: EOS, or the language in its place.
        self.begin = eos
        self.encoder = encoder
        self.decoder = decoder
        self.block_size = block_size
        # In a tuple, so that it is no submodule: its weights are neither trained nor saved.
        self._verifier: tuple[TransformerModelBase] | tuple[()] = ()

    def begin_with(self, token: int) -> None:
        """Let targets begin with the token of a language."""
        self.begin = token

    @staticmethod
    def check_task(task: FairseqTask) -> None:
        """Refuse a task that cannot generate with a drafter."""
        if "verifier" not in dir(task):  # hasattr would load it
            raise ValueError(
                "a drafter needs --task translation_specdec (from_pretrained: name the drafter's "
                "checkpoint before the verifier's)"
            )

    def slots(self, block_size: int | None) -> int:
        """Return the slots of a block to draft, by default all that were trained."""
        size = self.block_size if block_size is None else block_size
        if not 1 <= size <= self.block_size:
            raise ValueError(
                f"--block-size {size}: the drafter was trained for blocks of 1 to {self.block_size}"
            )
        return size

    def attach_verifier(self, verifier: TransformerModelBase) -> None:
        """Let the drafter read the verifier's encoder, tables and states; it never changes them.

        The verifier is moved to where the drafter is, and takes its dtype.
        """
        weight = next(self.parameters())
        self._verifier = (verifier.to(weight.device, weight.dtype),)

    @property
    def verifier(self) -> TransformerModelBase:
        """The attached verifier."""
        if not self._verifier:
            raise ValueError("this drafter needs its verifier: give it with --AR-path")
        return self._verifier[0]

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Accept what another version of fairseq saved: packed copies, and placeholders of tables
        of sinusoidal positions, may be missing or superfluous. A draft vocabulary has its saved
        length."""
        super().upgrade_state_dict_named(state_dict, name)
        saved = state_dict.get(VOCABULARY)
        if saved is not None:
            self._check_draft_vocabulary(saved)
            saved = torch.empty_like(saved, device=next(self.parameters()).device)
        self.decoder.draft_vocabulary = saved
        weights = self.state_dict()
        for key in [key for key in state_dict if key not in weights and REDUNDANT.search(key)]:
            del state_dict[key]
        for key in weights:
            if key.endswith("._float_tensor"):
                state_dict.setdefault(key, weights[key])

    def _check_draft_vocabulary(self, tokens: Tensor) -> None:
        listed = set(tokens.flatten().tolist())
        is_list = tokens.dtype == torch.long and tokens.dim() == 1 and len(tokens) == len(listed)
        allowed = set(range(self.decoder.entries)) - {self.decoder.padding}
        if not (is_list and {self.eos} < listed <= allowed):
            raise ValueError(f"{VOCABULARY} is no list of different tokens with the sentence's end")

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: object, **kwargs: object) -> Drafter:
        # The verifier follows to every device and dtype.
        if self._verifier:
            self._verifier[0]._apply(fn)
        return super()._apply(fn, *args, **kwargs)

    def max_positions(self) -> tuple[int | None, int]:
        """Return the longest source and target, in tokens, that batches may hold: that this drafter
        reads, and its verifier, if it is attached.

        The source has no bound where neither has an encoder yet.
        """
        sources = [] if self.encoder is None else [int(self.encoder.max_positions())]
        targets = [int(self.decoder.embed_positions.max_positions) - self.block_size]
        for verifier in self._verifier:
            sources.append(int(verifier.encoder.max_positions()))
            targets.append(int(verifier.decoder.max_positions()))
        return min(sources, default=None), min(targets)

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
        """Return ``(batch, length, channels)`` the verifier's states that predict ``target``, and
        these with the states after ``feature_layers``, which a drafter's features are made from.

        ``encoder_out`` is this drafter's, which may be the verifier's, too.
        """
        if self.encoder is not None:
            encoder_out = self.verifier.encoder(src_tokens, src_lengths=src_lengths)
        shifted = F.pad(target[:, :-1], (1, 0), value=self.begin)
        states, extra = self.verifier.decoder.extract_features(shifted, encoder_out=encoder_out)
        assert extra is not None
        # The first of them is the first layer's input.
        inner = [extra["inner_states"][layer].transpose(0, 1) for layer in self.feature_layers]
        return states, with_layers(states, inner)

    def forward(
        self,
        sample: Sample,
        read: SlotReader = lambda logits, _: (logits,),
        with_verifier: bool = False,
    ) -> DrafterOutput:
        """Score the blocks of ``target`` ``(batch, length)`` after ``cuts`` ``(batch, blocks)``.

        Args:
            sample: a batch; of its additions ``glancing_ratio`` is the part of the wrong slots to
                reveal, where 0 makes a single pass, and ``seeds`` ``(batch,)`` choose each
                sentence's noise.
            read: reads logits; it draws nothing, and changes nothing.
            with_verifier: ``read`` is also given the verifier's states, for labels.
        """
        target = sample["target"]
        net_input = sample["net_input"]
        seeds = sample["seeds"]
        blocks = Blocks.cut(target, sample["cuts"], self.block_size, self.decoder.padding)
        tokens = net_input["src_tokens"]
        lengths = net_input["src_lengths"]
        encoder_out = self.encode(tokens, lengths)
        states = features = None
        if with_verifier or self.uses_verifier_features:
            states, inner = self.verifier_states(tokens, lengths, target, encoder_out)
            if self.uses_verifier_features:
                features = self.decoder.feature_reader()(inner)
        hiding = seeds if self.training else None
        labels = states if with_verifier else None
        training_pass = TrainingPass(
            self.decoder, target, blocks, encoder_out, features, self.begin, hiding, labels
        )
        predicted = None
        revealed = torch.zeros_like(blocks.scored)
        if (ratio := sample["glancing_ratio"]) > 0:
            predicted, revealed = self._glance(training_pass, blocks, ratio, seeds)
        best, *values = training_pass.score(revealed, read)
        if predicted is None:
            predicted = blocks.spread(best)
        return DrafterOutput(
            values=tuple(values),
            blocks=blocks,
            scored=blocks.scored & ~revealed,
            glanced_correct=(predicted == blocks.gold) & blocks.scored,
        )

    def _glance(
        self, training_pass: TrainingPass, blocks: Blocks, ratio: float, seeds: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return ``(batch, blocks, slots)`` predicted tokens, and True for slots to reveal."""
        with torch.no_grad():
            (best,) = training_pass.score(torch.zeros_like(blocks.scored), lambda *_: ())
        # Else older versions of torch give the second pass copies of weights that autocast made in
        # the first, and no gradient reaches the weights.
        torch.clear_autocast_cache()
        predicted = blocks.spread(best)
        uniforms = sentence_uniforms(seeds, GLANCING, *predicted.shape[1:])
        return predicted, glance(blocks.gold, predicted, blocks.scored, ratio, uniforms)
