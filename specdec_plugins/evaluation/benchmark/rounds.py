"""Alternating timed runs of every system, those that are there already left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import groupby
from pathlib import Path

from specdec_plugins.evaluation.benchmark.ctranslate2_system import CTranslate2Job
from specdec_plugins.evaluation.benchmark.measurements import BenchmarkFolder, Measurement
from specdec_plugins.evaluation.benchmark.own_systems import TranslatorJob
from specdec_plugins.evaluation.benchmark.processes import SystemProcess, waiting
from specdec_plugins.evaluation.benchmark.sentences import Sentences
from specdec_plugins.evaluation.benchmark.systems import CTRANSLATE2, BenchmarkSystem
from specdec_plugins.evaluation.benchmark.worker import Answer, Job
from specdec_plugins.evaluation.sweep import DECIDED_BY_RUN, check_counts
from specdec_plugins.files.json_object import JsonObject
from specdec_plugins.files.paths import file_digest
from specdec_plugins.inference.run_files import acceptance_head, describe_settings
from specdec_plugins.inference.settings import Settings
from specdec_plugins.machine import cores, processor_name

Note = Callable[[str], object]


@dataclass(frozen=True)
class Round:
    """One run of every system, as far as it is still to be made."""

    batch: int
    number: int
    systems: Sequence[BenchmarkSystem]


@dataclass(frozen=True)
class Benchmark:
    """What is to be run: every system, ``repeats`` times, at every batch size."""

    systems: Sequence[BenchmarkSystem]
    base: Settings
    """What all of ours share, with the text's tokenizer and BPE."""
    sentences: Sentences
    model: Path | None
    """The folder of the verifier as CTranslate2 has it; None where that is not compared."""
    versions: Mapping[str, str]
    """Of what decodes."""
    batches: Sequence[int] = (1,)
    repeats: int = 5
    warmup: int = 16
    """Lines that a system decodes before its first run here; at least one batch."""

    def __post_init__(self) -> None:
        """
        Raises:
            ValueError: a number that cannot be, naming its flag.
        """
        check_counts(self.repeats, self.batches, self.warmup)

    def describe(self) -> JsonObject:
        """All that decides a run and is not told by its own record; files by their content."""
        described = describe_settings(self.base)
        for name in (*DECIDED_BY_RUN, "rule", "engine", "precision", "drafter_precision"):
            del described["settings"][name]
        return {
            "versions": dict(self.versions),
            "processor": processor_name(),
            "cores": cores(),
            "waiting": waiting(),
            "text": self.sentences.describe(),
            **described,
            "systems": {system.label: self._describe(system) for system in self.systems},
            "warmup": self.warmup,
        }

    def _describe(self, system: BenchmarkSystem) -> JsonObject:
        described = system.describe()
        if system.drafts and system.controller.needs_head:
            head = acceptance_head(system.settings(self.base, 1))
            described["controller"]["acceptance_head"] = head and file_digest(head)
        return described

    def pending(self, runs: Iterable[Measurement]) -> list[Round]:
        """The rounds that are not complete, in the order in which they are to be run.

        Args:
            runs: those that there are.
        """
        done = {(run.system, run.batch, run.round) for run in runs}
        rounds = []
        for batch in self.batches:
            for number in range(1, self.repeats + 1):
                # Each round begins with another system: none always has the machine when it is
                # busy, or when it has just rested.
                first = (number - 1) % len(self.systems)
                turn = [*self.systems[first:], *self.systems[:first]]
                missing = [s for s in turn if (s.label, batch, number) not in done]
                if missing:
                    rounds.append(Round(batch, number, missing))
        return rounds

    def job(self, system: BenchmarkSystem, batch: int) -> Job:
        """What the system's process is to load and decode."""
        places = self.sentences.batches(batch)
        tokens = [[self.sentences.tokens[i] for i in batch] for batch in places]
        if system.strategy != CTRANSLATE2:
            return TranslatorJob(system.settings(self.base, batch), tokens)
        most = [[self.sentences.most[i] for i in batch] for batch in places]
        least = self.base.limits.min_len
        assert self.model is not None
        return CTranslate2Job(
            str(self.model), system.precision, system.threads, tokens, most, least
        )


def run_benchmark(
    benchmark: Benchmark, folder: BenchmarkFolder, note: Note
) -> Iterator[Measurement]:
    """Make the runs that are missing, each when it is asked for; it is on the disk when it comes.

    Args:
        folder: entered.
        note: is told what is being done.

    Raises:
        InferenceError: a system failed, or the folder cannot be written to.
    """
    rounds = benchmark.pending(folder.runs)
    for _, here in groupby(rounds, key=lambda one: one.batch):
        yield from _run_rounds(benchmark, list(here), folder, note)


def _run_rounds(
    benchmark: Benchmark, rounds: Sequence[Round], folder: BenchmarkFolder, note: Note
) -> Iterator[Measurement]:
    """Rounds of one batch size; all systems are loaded before the first one runs."""
    batch = rounds[0].batch
    places = benchmark.sentences.batches(batch)
    needed = {system.label: system for one in rounds for system in one.systems}
    with ExitStack() as stack:
        processes = {}
        for label, system in needed.items():
            process = SystemProcess(label, benchmark.job(system, batch), system.threads)
            processes[label] = stack.enter_context(process)
        for label, process in processes.items():
            note(f"loading {label}")
            process.wait()
        # One at a time, since some measure what a step takes.
        for label, process in processes.items():
            note(f"warming up {label}")
            process.decode(-(-benchmark.warmup // batch))
        for one in rounds:
            for system in one.systems:
                note(f"batch {batch}, round {one.number}: {system.label}")
                began = datetime.now(timezone.utc).isoformat(timespec="seconds")
                answer = processes[system.label].decode(len(places))
                run = _measurement(benchmark.sentences, system, one, began, answer)
                folder.add(run)
                yield run


def _measurement(
    sentences: Sentences, system: BenchmarkSystem, one: Round, began: str, answer: Answer
) -> Measurement:
    decoded = answer.decoded
    assert decoded is not None
    places = sentences.batches(one.batch)
    return Measurement(
        system=system.label,
        batch=one.batch,
        round=one.number,
        began=began,
        sentences=len(sentences.lines),
        seconds=decoded.seconds,
        peak_memory=answer.peak_memory,
        output=sentences.texts(decoded.outputs, places) if one.number == 1 else [],
        **decoded.figures,
    )
