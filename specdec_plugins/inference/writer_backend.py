"""Greedy decoding in int8 by the writer, without drafts."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specdec_plugins.decoding.hypotheses import total_score
from specdec_plugins.decoding.step_result import Hypothesis
from specdec_plugins.decoding.steps.encoder import SourceReader, embeds_as_stock, is_stock
from specdec_plugins.decoding.target_prefix import read_prefix, with_prefix
from specdec_plugins.engines.choice import choose_engine
from specdec_plugins.engines.int8_products import weight_bits
from specdec_plugins.engines.writer.writer import Sentence, Writer
from specdec_plugins.host.fairseq_types import Sample
from specdec_plugins.inference.backends import Backend, BatchGenerator
from specdec_plugins.inference.settings import Settings
from specdec_plugins.machine import processor_name

if TYPE_CHECKING:
    from fairseq.data import Dictionary
    from fairseq.models.transformer import TransformerModelBase

#: The largest batch for which the writer, which takes rows one by one, pays (docs/benchmarks.md).
MAX_ROWS = 3


def writes(settings: Settings, verifier: TransformerModelBase) -> bool:
    """Return whether the writer is to decode in place of our loop, if it can run the verifier's
    decoder."""
    int8 = settings.precision == "int8" and settings.engine == "auto"
    each_token = settings.rule.draws or settings.trace or settings.limits.repetition_penalty != 1
    encoder = verifier.encoder
    stock = is_stock(encoder) and embeds_as_stock(encoder)
    small = settings.batch <= MAX_ROWS
    return settings.kind is None and int8 and stock and small and not each_token


def encoder_precision() -> str:
    """Return int8, unless its weights would have seven bits here.

    By those the encoder was no faster than in float32, and two thirds more lines changed
    (docs/engines.md, "The writer").
    """
    bits = weight_bits(processor_name(), platform.machine())
    return "int8" if bits == 8 else "float32"


class WriterGenerator(BatchGenerator):
    """Reads and writes sentence by sentence: no output depends on the others of its batch."""

    def __init__(
        self,
        writer: Writer,
        settings: Settings,
        verifier: TransformerModelBase,
        target: Dictionary,
    ) -> None:
        super().__init__(int(verifier.max_decoder_positions()), Backend("writer", "int8"))
        self._writer = writer
        self._limits = settings.limits
        self._with_scores = settings.scores
        self._pad = target.pad()
        self._eos = target.eos()
        self._unk = target.unk()
        self._engine = choose_engine("auto", encoder_precision(), settings.device)
        self._reader = SourceReader(verifier, self._engine)
        if self._engine.stores_weights:
            self._engine.release()

    @torch.inference_mode()
    def decode(
        self, sample: Sample, prefix_tokens: Tensor | None, bos_token: int | None
    ) -> list[list[Hypothesis]]:
        net_input = with_prefix(sample, prefix_tokens, bos_token)["net_input"]
        sources = [row[row != self._pad] for row in net_input["src_tokens"]]
        limits = self._limits.max_lengths(net_input, list(map(len, sources)), self.positions)
        prefixes, counts, limits = read_prefix(net_input, limits, self._pad, self._eos)
        first = self._eos if bos_token is None else bos_token
        clock = self.statistics.clock(sources[0].device)
        rows = []
        with self._engine.running():
            for source, prefix, count, limit in zip(sources, prefixes.tolist(), counts, limits):
                with clock.phase("encode"):
                    memory = self._reader.read(source)
                with clock.phase("verify"):
                    # The token after the last one is chosen, too, where it is to be EOS.
                    sentence = self._writer.sentence(memory, first, limit + 1)
                    rows.append([self._hypothesis(sentence, prefix[:count], limit)])
        return rows

    def _hypothesis(self, sentence: Sentence, prefix: list[int], limit: int) -> Hypothesis:
        words, _ = sentence.write(prefix, limit + 1 - len(prefix), self._limits.min_len)
        if len(words) > limit:
            words[limit] = self._eos
        steps = len(words) - len(prefix)
        tokens = torch.tensor(words)
        hypothesis: Hypothesis = {
            "tokens": tokens,
            "steps": steps,
            "accepted": [0] * steps,
            "forced": len(prefix),
        }
        if self._with_scores:
            temperature = self._limits.temperature
            scores = self._writer.log_probabilities(sentence, tokens, temperature)
            scores[tokens == self._unk] -= self._limits.unkpen
            hypothesis["positional_scores"] = scores
            hypothesis["score"] = total_score(scores, self._limits)
        return hypothesis
