"""fairseq's own beam search, counted and timed like our generators: the baseline."""

from __future__ import annotations

import time
from argparse import Namespace

from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerModelBase
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks import FairseqTask
from torch import Tensor

from specdec_plugins.decoding.kernels import wait_for
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.decoding.step_result import Hypothesis
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.engine import Engines
from specdec_plugins.host.fairseq_types import Sample
from specdec_plugins.inference.settings import Settings


class BeamSearchGenerator:
    """A stock ``SequenceGenerator`` with statistics; its output is left alone.

    A step is a token of the best hypothesis; nothing is drafted. A sentence's latency is that of
    its batch, since stock fairseq returns a batch as a whole.
    """

    def __init__(self, generator: SequenceGenerator, precision: str = "float32") -> None:
        self.generator = generator
        self.engines = Engines.both(EagerEngine(precision))
        self.positions = int(generator.model.max_decoder_positions())
        self.statistics = DecodingStatistics()

    def generate(
        self,
        models: list[BaseFairseqModel],
        sample: Sample,
        prefix_tokens: Tensor | None = None,
        bos_token: int | None = None,
    ) -> list[list[Hypothesis]]:
        """Translate a batch; ``models`` is fairseq's argument, the generator has its own."""
        start = time.perf_counter()
        hypotheses: list[list[Hypothesis]] = self.generator.generate(
            models, sample, prefix_tokens=prefix_tokens, bos_token=bos_token
        )
        wait_for(sample["net_input"]["src_tokens"].device)
        seconds = time.perf_counter() - start
        if prefix_tokens is not None:
            lengths = prefix_tokens.ne(self.generator.pad).sum(1).tolist()
            for row, length in zip(hypotheses, lengths, strict=True):
                for hypothesis in row:
                    # The maximum length may cut the prefix.
                    hypothesis["forced"] = min(length, len(hypothesis["tokens"]) - 1)
        count_batch(self.statistics, hypotheses, seconds)
        return hypotheses


def count_batch(
    statistics: DecodingStatistics, hypotheses: list[list[Hypothesis]], seconds: float
) -> None:
    """Count a batch that was decoded as a whole, with a step for each token."""
    tokens = sum(len(row[0]["tokens"]) for row in hypotheses)
    forced = sum(row[0].get("forced", 0) for row in hypotheses)
    statistics.total_seconds += seconds
    statistics.sentences += len(hypotheses)
    statistics.latencies.extend([seconds] * len(hypotheses))
    statistics.forced_tokens += forced
    statistics.committed_tokens += tokens - forced
    statistics.steps += tokens
    statistics.verifier_calls += tokens
    statistics.acceptance_histogram = [statistics.steps]


def build_beam_search(
    settings: Settings, task: FairseqTask, verifier: TransformerModelBase
) -> BeamSearchGenerator:
    """Return stock beam search, prepared as fairseq-generate prepares it."""
    limits = settings.limits
    options = Namespace(
        **vars(limits), beam=settings.beam, unnormalized=not limits.normalize_scores
    )
    verifier.prepare_for_inference_(Namespace(generation=options))
    return BeamSearchGenerator(task.build_generator([verifier], options), settings.precision)
