"""An experiment: alternating timed runs of every system, each in a process of its own.

The runs are lines of ``runs.jsonl``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import groupby, product
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from specdec_plugins.decoding.statistics import COUNTS, RATES, DecodingStatistics
from specdec_plugins.evaluation.ctranslate2_system import CTranslate2Job
from specdec_plugins.evaluation.systems import System, TranslatorJob
from specdec_plugins.evaluation.texts import Sentences
from specdec_plugins.evaluation.worker import SystemProcess
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.output import JsonObject, work_folder
from specdec_plugins.inference.report import describe_settings, versions
from specdec_plugins.machine import cores, processor_name

DESCRIPTION, RUNS = "experiment.json", "runs.jsonl"
Note = Callable[[str], object]
"""Shows the progress."""


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One run of a system over a text. Times are of decoding alone.

    Counts are None where a system does not tell its steps. ``sentences`` holds a column for each
    known figure, in the order of the text: ``line`` and ``seconds`` (of the sentence's batch), and
    as far as they are known ``steps``, counts of tokens and ``output``.
    """

    system: str
    text: str
    threads: int
    batch: int
    round: int
    """From 1; the seed of drawn output."""
    began: str
    """Date and time, UTC."""
    engine: str
    precision: str
    seconds: float
    sentences: dict[str, list[Any]]
    memory: int | None = None
    """Peak of the process, on a GPU of its tensors, in bytes."""
    block_size: int | None = None
    control_seconds: float | None = None
    """The part of the seconds that the controller took."""
    committed_tokens: int | None = None
    steps: int | None = None
    drafted_tokens: int | None = None
    verified_tokens: int | None = None
    accepted_tokens: int | None = None
    verifier_calls: int | None = None
    drafter_calls: int | None = None

    def figures(self) -> dict[str, float]:
        """Return the time of a sentence and all rates that are known.

        ``acceptance_length`` has the bonus token included. ``discard_rate`` is of drafted tokens,
        ``verified_discard_rate`` (SpecDec++'s) of verified ones, each per committed token.
        """
        figures = {"milliseconds": 1000 * self.seconds / len(self.sentences["line"])}
        if self.memory is not None:
            figures["memory"] = self.memory
        if self.committed_tokens:
            counts = DecodingStatistics()
            vars(counts).update({name: getattr(self, name) or 0 for name in COUNTS})
            figures["tokens_per_second"] = self.committed_tokens / max(self.seconds, 1e-9)
            figures["control_share"] = (self.control_seconds or 0) / max(self.seconds, 1e-9)
            figures["verification_rate"] = counts.verification_rate
            if self.verified_tokens is not None:
                figures |= {name: getattr(counts, name) for name in RATES}
                unwanted = counts.verified_tokens - counts.accepted_tokens
                figures["verified_discard_rate"] = unwanted / self.committed_tokens
        return figures


@dataclass(frozen=True)
class Conditions:
    """Conditions that the systems of a round share."""

    text: Sentences
    batch: int
    threads: int


@dataclass(frozen=True)
class Experiment:
    """Every system in every round, on every text, at every batch size and number of threads."""

    systems: Sequence[System]
    texts: Sequence[Sentences]
    rounds: int = 5
    batches: Sequence[int] = (1,)
    threads: Sequence[int] = (1,)
    warmup: int = 16
    """Lines that a system decodes before its first run; at least one batch."""
    model: Path | None = None
    """The folder of the verifier as CTranslate2 has it, if that is a system."""

    def describe(self) -> JsonObject:
        """Return all that decides a run and is not part of its record; files by their content."""
        systems = {s.name: (s.compute_type, describe_settings(s.settings)) for s in self.systems}
        return {
            "versions": versions(),
            "processor": processor_name(),
            "cores": cores(),
            "texts": {text.name: text.describe() for text in self.texts},
            "systems": systems,
            "warmup": self.warmup,
        }

    def pending(self, runs: Iterable[Run]) -> Iterator[tuple[Conditions, int, list[System]]]:
        """Yield the systems that are missing in each round, in the order in which they are to run.

        The order differs from round to round, so that no system always comes after the same other
        or has the machine when it is busy.
        """
        done = {(run.system, run.text, run.batch, run.threads, run.round) for run in runs}
        for batch, threads, text in product(self.batches, self.threads, self.texts):
            where = Conditions(text, batch, threads)
            for number in range(1, self.rounds + 1):
                turn = Random(number).sample(self.systems, len(self.systems))
                here = text.name, batch, threads, number
                if missing := [system for system in turn if (system.name, *here) not in done]:
                    yield where, number, missing

    def job(self, system: System, where: Conditions) -> TranslatorJob | CTranslate2Job:
        """Return the job of a system under these conditions."""
        text, batches = where.text, where.text.batches(where.batch)
        if system.compute_type is None:
            settings = replace(system.settings, batch=where.batch)
            return TranslatorJob(settings, [[text.lines[i] for i in batch] for batch in batches])
        return CTranslate2Job(
            str(self.model),
            system.compute_type,
            where.threads,
            [[text.tokens[i] for i in batch] for batch in batches],
            [[text.longest[i] for i in batch] for batch in batches],
            system.settings.limits.min_len,
        )


def measure(experiment: Experiment, out: Path, note: Note) -> Iterator[Run]:
    """Yield all runs: those of an earlier, interrupted command, then new ones, each on the disk."""
    with work_folder(out, out / DESCRIPTION, experiment.describe()):
        runs = read_runs(out / RUNS)
        yield from runs
        with open(out / RUNS, "ab") as file:
            # A killed process may have left a piece of a line.
            file.truncate(sum(len(msgspec.json.encode(run)) + 1 for run in runs))
            for where, missing in groupby(experiment.pending(runs), key=lambda item: item[0]):
                for run in _run_rounds(experiment, where, [item[1:] for item in missing], note):
                    file.write(msgspec.json.encode(run) + b"\n")
                    file.flush()
                    yield run


def _run_rounds(
    experiment: Experiment,
    where: Conditions,
    rounds: Sequence[tuple[int, list[System]]],
    note: Note,
) -> Iterator[Run]:
    """Load all systems, warm them up, then make the rounds."""
    jobs = {s.name: experiment.job(s, where) for _, missing in rounds for s in missing}
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(SystemProcess(name, job, where.threads))
            for name, job in jobs.items()
        }
        for name, worker in workers.items():
            note(f"loading {name}")
            worker.load()
        for name, worker in workers.items():
            note(f"warming up {name}")
            worker.decode(-(-experiment.warmup // where.batch), 1)
        for number, missing in rounds:
            for system in missing:
                note(f"{where.text.name}, batch {where.batch}, round {number}: {system.name}")
                yield timed_run(system, workers[system.name], where, number)


def timed_run(system: System, worker: SystemProcess, where: Conditions, number: int) -> Run:
    """Have all batches decoded once."""
    batches = where.text.batches(where.batch)
    order = [i for batch in batches for i in batch]
    began = datetime.now(timezone.utc).isoformat(timespec="seconds")
    decoded = worker.decode(len(batches), number)
    columns = dict(decoded.columns)
    pairs = zip(decoded.seconds, batches, strict=True)
    columns["seconds"] = [round(seconds, 6) for seconds, batch in pairs for _ in batch]
    if number == 1 or system.settings.rule.draws:
        columns["output"] = [
            output if isinstance(output, str) else where.text.joined(output)
            for output in decoded.outputs
        ]
    columns["line"] = [where.text.lines[i].number for i in order]
    in_text = sorted(range(len(order)), key=order.__getitem__)
    return Run(
        system=system.name,
        text=where.text.name,
        threads=where.threads,
        batch=where.batch,
        round=number,
        began=began,
        seconds=sum(decoded.seconds),
        sentences={name: [column[i] for i in in_text] for name, column in columns.items()},
        **decoded.figures,
    )


def read_runs(path: Path) -> list[Run]:
    """Return the complete lines of a file of runs; none if there is no file."""
    if not path.exists():
        return []
    *lines, _ = path.read_bytes().split(b"\n")
    try:
        return [msgspec.json.decode(line, type=Run) for line in lines]
    except (ValueError, RecursionError) as error:
        raise InferenceError(f"{path}: holds a line that is no run ({error})") from error
