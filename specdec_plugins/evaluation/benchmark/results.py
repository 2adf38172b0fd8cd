"""What the runs of a benchmark come to: medians over rounds, and ratios within rounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product

from specdec_plugins.evaluation.benchmark.measurements import Measurement
from specdec_plugins.evaluation.benchmark.systems import (
    AR,
    CTRANSLATE2,
    FLOAT32,
    BenchmarkSystem,
)
from specdec_plugins.evaluation.bleu import References, Scores
from specdec_plugins.evaluation.summary import Spread
from specdec_plugins.files.json_object import JsonObject


@dataclass(frozen=True)
class SystemResult:
    """A system at one batch size."""

    system: BenchmarkSystem
    runs: Sequence[Measurement]
    """By round."""
    milliseconds: Spread
    """A sentence."""
    over_baseline: Spread | None
    """How many times as fast as the baseline with as many threads; None where that has not run."""
    bleu: Scores | None
    """Of round 1; None without references."""
    unlike_ar: int | None
    """Lines of round 1 that differ from those of AR of the same engine, precision and threads."""
    unlike_ctranslate2: int | None
    """Lines of round 1 that differ from those of CTranslate2 in float32 with as many threads."""

    @property
    def first(self) -> Measurement:
        """One that tells what all share."""
        return self.runs[0]

    @property
    def peak_memory(self) -> float:
        """MiB of its process, weights and libraries included."""
        return max(run.peak_memory for run in self.runs) / 2**20

    def figures(self) -> JsonObject:
        """Its part of ``summary.json``."""
        first = self.first
        return {
            **self.system.describe(),
            "batch": first.batch,
            "block_size": first.block_size,
            "milliseconds_a_sentence": asdict(self.milliseconds),
            "speed_over_baseline": self.over_baseline and asdict(self.over_baseline),
            "bleu": self.bleu and self.bleu.sacrebleu,
            "tokenised_bleu": self.bleu and self.bleu.tokenised,
            "acceptance_length": first.acceptance_length,
            "verification_rate": first.verification_rate,
            "discard_rate": first.discard_rate,
            "peak_memory_mib": self.peak_memory,
            "lines_unlike_AR": self.unlike_ar,
            "lines_unlike_CTranslate2_float32": self.unlike_ctranslate2,
        }


@dataclass(frozen=True)
class Leader:
    """The fastest of a family over that of another, whatever their precisions and threads."""

    system: SystemResult
    over: SystemResult
    ratio: Spread
    """Within rounds."""

    def figures(self) -> JsonObject:
        """Its part of ``summary.json``."""
        return {
            "system": self.system.system.label,
            "over": self.over.system.label,
            "speed_ratio": asdict(self.ratio),
        }


@dataclass(frozen=True)
class BatchResult:
    """All systems at one batch size, in the order of the benchmark."""

    batch: int
    systems: Sequence[SystemResult]

    def leaders(self) -> list[Leader]:
        """The fastest of each acceptance rule over the fastest of each family without drafts."""
        fastest: dict[str, SystemResult] = {}
        for system in sorted(self.systems, key=lambda s: s.milliseconds.median):
            fastest.setdefault(system.system.family, system)
        drafting = [s for s in fastest.values() if s.system.drafts]
        others = [s for s in fastest.values() if not s.system.drafts]
        found = []
        for own, other in product(drafting, others):
            ratio = speed_ratio(own.runs, other.runs)
            if ratio is not None:
                found.append(Leader(own, other, ratio))
        return found


def speed_ratio(own: Sequence[Measurement], other: Sequence[Measurement]) -> Spread | None:
    """How many times as fast, within rounds, since the speed of a machine drifts."""
    theirs = {run.round: run.seconds for run in other}
    return Spread.of(theirs[run.round] / run.seconds for run in own if run.round in theirs)


def collect(
    runs: Iterable[Measurement],
    systems: Sequence[BenchmarkSystem],
    baseline: str,
    references: References | None,
) -> list[BatchResult]:
    """The results, smaller batches first; systems without a run are left out.

    Args:
        baseline: a system's name.
        references: of every line that was decoded.
    """
    batches: dict[int, dict[str, dict[int, Measurement]]] = {}
    for run in runs:
        batches.setdefault(run.batch, {}).setdefault(run.system, {})[run.round] = run
    found = []
    for batch, by_system in sorted(batches.items()):
        by_label = {name: [r for _, r in sorted(o.items())] for name, o in by_system.items()}
        results = [
            _result(system, by_label, systems, baseline, references)
            for system in systems
            if system.label in by_label
        ]
        found.append(BatchResult(batch, results))
    return found


def _result(
    system: BenchmarkSystem,
    by_label: Mapping[str, Sequence[Measurement]],
    systems: Sequence[BenchmarkSystem],
    baseline: str,
    references: References | None,
) -> SystemResult:
    runs = by_label[system.label]
    milliseconds = Spread.of(1000 * run.seconds / run.sentences for run in runs)
    assert milliseconds is not None
    beside = [other for other in systems if other.threads == system.threads]

    def those(name_of: str, **like: str) -> Sequence[Measurement]:
        """The runs of the system beside it that is so named, or of that kind."""
        for other in beside:
            kind = all(getattr(other, name) == value for name, value in like.items())
            if kind and name_of in (other.name, other.family):
                return by_label.get(other.label, [])
        return []

    output = _output(runs)
    bleu = references.scores(output) if output and references else None
    return SystemResult(
        system,
        runs,
        milliseconds,
        speed_ratio(runs, those(baseline)),
        bleu,
        _unlike(output, those(AR, engine=system.engine, precision=system.precision)),
        _unlike(output, those(CTRANSLATE2, precision=FLOAT32)),
    )


def _output(runs: Sequence[Measurement]) -> list[str]:
    return next((run.output for run in runs if run.output), [])


def _unlike(output: list[str], runs: Sequence[Measurement]) -> int | None:
    """How many lines differ; None where either is not there."""
    other = _output(runs)
    return sum(a != b for a, b in zip(output, other)) if output and other else None
