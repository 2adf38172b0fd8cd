"""An experiment: alternating timed runs of every system, each in a process of its own.

The runs are lines of ``runs.jsonl``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import product, takewhile
from pathlib import Path
from random import Random

import msgspec
import torch

from specdec_plugins.decoding.statistics import RATES, DecodingStatistics
from specdec_plugins.evaluation.ctranslate2_system import CTranslate2Job
from specdec_plugins.evaluation.texts import Sentences
from specdec_plugins.evaluation.translator_system import TranslatorJob
from specdec_plugins.evaluation.worker import SentenceFigures, SystemProcess
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.output import JsonObject, work_folder
from specdec_plugins.inference.report import describe_settings, versions
from specdec_plugins.inference.settings import Settings
from specdec_plugins.machine import cores, processor_name

DESCRIPTION = "experiment.json"
RUNS = "runs.jsonl"
#: Shows the progress.
Note = Callable[[str], object]
#: A round's number, and a system that is timed in it.
Turn = tuple[int, str]


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One run of a system over a text. Times are of decoding alone."""

    system: str
    text: str
    threads: int
    batch: int
    #: From 1; the seed of drawn output.
    round: int
    #: Date and time, UTC.
    began: str
    engine: str
    precision: str
    seconds: float
    #: The translations, in the order of the text.
    outputs: list[str]
    #: Peak of the process, on a GPU of its tensors, in bytes.
    memory: int | None = None
    #: Seconds of each phase of decoding; none if the system tells none.
    parts: dict[str, float] = {}
    #: Counts of tokens, steps and calls, as far as the system tells them.
    counts: dict[str, int] = {}
    #: Figures of each sentence, in the order of the text; none if the system tells none.
    sentences: list[SentenceFigures] = []

    def figures(self) -> dict[str, float]:
        """Return the time of a sentence and all rates that are known.

        ``acceptance_length`` has the bonus token included. ``discard_rate`` is of drafted tokens,
        ``verified_discard_rate`` (SpecDec++'s) of verified ones, each per committed token.
        """
        figures = {"milliseconds": 1000 * self.seconds / len(self.outputs)}
        if self.memory is not None:
            figures["memory"] = self.memory
        if self.sentences:
            tokens = sum(sentence.length for sentence in self.sentences)
            figures["tokens_per_second"] = tokens / max(self.seconds, 1e-9)
        if self.counts:
            counts = DecodingStatistics()
            vars(counts).update(self.counts)
            figures["verification_rate"] = counts.verification_rate
            if "drafted_tokens" not in self.counts:
                figures["acceptance_length"] = counts.acceptance_length
            if "verified_tokens" in self.counts:
                figures |= {name: getattr(counts, name) for name in RATES}
                figures["verified_discard_rate"] = (
                    counts.verified_tokens - counts.accepted_tokens
                ) / max(counts.committed_tokens, 1)
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

    #: Settings by the string that they were made from.
    systems: Mapping[str, Settings]
    texts: Sequence[Sentences]
    rounds: int = 5
    batches: Sequence[int] = (1,)
    threads: Sequence[int] = (1,)
    #: Lines that a system decodes before its first run; at least one batch.
    warmup: int = 16
    #: The folder of the verifier as CTranslate2 has it, if that is a system.
    model: Path | None = None

    def describe(self) -> JsonObject:
        """Return all that decides a run and is not part of its record; files by their content."""
        return {
            "versions": versions(),
            "processor": machine_name(),
            "cores": cores(),
            "texts": {text.name: text.describe() for text in self.texts},
            "systems": {name: describe_settings(item) for name, item in self.systems.items()},
            "warmup": self.warmup,
        }

    def pending(self, runs: Iterable[Run]) -> Iterator[tuple[Conditions, list[Turn]]]:
        """Yield the missing turns under all conditions, in the order in which they are to be made.

        The order differs from round to round, so that no system always comes after the same other
        or has the machine when it is busy.
        """
        done = {(run.text, run.batch, run.threads, run.round, run.system) for run in runs}
        for batch, threads, text in product(self.batches, self.threads, self.texts):
            turns = [
                (number, system)
                for number in range(1, self.rounds + 1)
                for system in Random(number).sample(list(self.systems), len(self.systems))
                if (text.name, batch, threads, number, system) not in done
            ]
            if turns:
                yield Conditions(text, batch, threads), turns

    def job(self, system: str, where: Conditions) -> TranslatorJob | CTranslate2Job:
        """Return the job of a system under these conditions."""
        settings = self.systems[system]
        batches = where.text.batches(where.batch)
        if settings.by_ctranslate2:
            limits = settings.limits
            positions = where.text.positions
            limited = [
                [
                    replace(item, longest=limits.max_length(len(item.tokens) + 1, positions))
                    for item in batch
                ]
                for batch in batches
            ]
            return CTranslate2Job(
                str(self.model),
                settings.precision,
                where.threads,
                limits.min_len,
                settings.beams,
                limits.lenpen,
                limited,
            )
        return TranslatorJob(replace(settings, batch=where.batch), batches)


def machine_name() -> str:
    """Return the processor, and the GPU if there is one."""
    gpus = [torch.cuda.get_device_name()] if torch.cuda.is_available() else []
    return ", ".join([processor_name(), *gpus])


def measure(experiment: Experiment, out: Path, note: Note) -> Iterator[Run]:
    """Yield all runs: the whole rounds of an earlier, interrupted command, then new ones, each on
    the disk."""
    with work_folder(out, out / DESCRIPTION, experiment.describe()):
        runs = whole_rounds(read_runs(out / RUNS), len(experiment.systems))
        yield from runs
        encode_lines = msgspec.json.Encoder().encode_lines
        if (out / RUNS).exists():
            # A killed process may have left a piece of a line.
            os.truncate(out / RUNS, len(encode_lines(runs)))
        for where, turns in experiment.pending(runs):
            for run in _take_turns(experiment, where, turns, note):
                with open(out / RUNS, "ab") as file:
                    file.write(encode_lines([run]))
                yield run


def _take_turns(
    experiment: Experiment, where: Conditions, turns: Sequence[Turn], note: Note
) -> Iterator[Run]:
    """Load all systems, warm them up, then time them in turn."""
    with ExitStack() as stack:
        workers = {}
        for name in dict.fromkeys(system for _, system in turns):
            workers[name] = SystemProcess(name, experiment.job(name, where), where.threads)
            stack.callback(workers[name].close)
        for name, worker in workers.items():
            note(f"loading {name}")
            worker.load()
        for name, worker in workers.items():
            note(f"warming up {name}")
            worker.decode(-(-experiment.warmup // where.batch), 1)
        for number, name in turns:
            note(f"{where.text.name}, batch {where.batch}, round {number}: {name}")
            yield timed_run(workers[name], where, number)


def timed_run(worker: SystemProcess, where: Conditions, number: int) -> Run:
    """Have all batches decoded once."""
    text = where.text
    batches = text.batches(where.batch)
    began = datetime.now(timezone.utc).isoformat(timespec="seconds")
    decoded = worker.decode(len(batches), number)
    lines = [sentence.line.number for batch in batches for sentence in batch]
    outputs = dict(zip(lines, map(text.joined, decoded.outputs), strict=True))
    sentences = dict(zip(lines, decoded.sentences))
    return Run(
        system=worker.name,
        text=text.name,
        threads=where.threads,
        batch=where.batch,
        round=number,
        began=began,
        seconds=decoded.seconds,
        outputs=[outputs[line] for line in sorted(outputs)],
        sentences=[sentences[line] for line in sorted(sentences)],
        **decoded.figures,
    )


def whole_rounds(runs: Sequence[Run], systems: int) -> list[Run]:
    """Return the runs before the first of a round in which not all ``systems`` were timed: ratios
    are of systems that had the same machine at the same time."""
    rounds = [(run.text, run.batch, run.threads, run.round) for run in runs]
    made = Counter(rounds)
    whole = takewhile(lambda pair: made[pair[0]] == systems, zip(rounds, runs))
    return [run for _, run in whole]


def read_runs(path: Path) -> list[Run]:
    """Return the complete lines of a file of runs; none if there is no file."""
    if not path.exists():
        return []
    *lines, _ = path.read_bytes().split(b"\n")
    try:
        return [msgspec.json.decode(line, type=Run) for line in lines]
    except (ValueError, RecursionError) as error:
        raise InferenceError(f"{path}: holds a line that is no run ({error})") from error
