"""An experiment: alternating timed runs of every system, those that are there already left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import groupby, product
from pathlib import Path
from random import Random

from specdec_plugins.evaluation.ctranslate2_system import CTranslate2Job
from specdec_plugins.evaluation.folder import RunFolder
from specdec_plugins.evaluation.processes import SystemProcess, waiting
from specdec_plugins.evaluation.runs import Run, in_order
from specdec_plugins.evaluation.systems import CTRANSLATE2, System
from specdec_plugins.evaluation.texts import Sentences
from specdec_plugins.evaluation.timing import TranslatorJob
from specdec_plugins.evaluation.worker import Job
from specdec_plugins.files.output import JsonObject, file_digest
from specdec_plugins.inference.report import device_name
from specdec_plugins.inference.run_files import acceptance_head, describe_settings
from specdec_plugins.inference.settings import Settings
from specdec_plugins.machine import cores, processor_name

DECIDED_BY_SYSTEM = (
    *("batch", "device", "controller", "block_size", "strategy", "beam"),
    *("rule", "engine", "precision", "drafter_precision"),
)
"""Settings that a system or a run tells, or that do nothing here."""
Note = Callable[[str], object]


@dataclass(frozen=True)
class Round:
    """One run of every system, as far as it is still to be made."""

    batch: int
    text: Sentences
    number: int
    systems: Sequence[System]


@dataclass(frozen=True)
class Experiment:
    """What is to be run: every system, in every round, on every text, at every batch size."""

    systems: Sequence[System]
    texts: Sequence[Sentences]
    base: Settings
    """What all of ours share."""
    versions: Mapping[str, str]
    """Versions of what decodes."""
    rounds: Sequence[int] = (1, 2, 3, 4, 5)
    """The numbers of the rounds, which are seeds where tokens are drawn."""
    batches: Sequence[int] = (1,)
    warmup: int = 16
    """Lines that a system decodes before its first run here; at least one batch."""
    apart: bool = False
    """Whether each system has a process of its own."""
    model: Path | None = None
    """The folder of the verifier as CTranslate2 has it; None where that is not compared."""

    def describe(self) -> JsonObject:
        """All that decides a run and is not told by its own record; files by their content."""
        described = describe_settings(self.base)
        for system in self.systems:
            head = acceptance_head(system.settings)
            if head is not None:
                described["models"][Path(head).stem] = file_digest(head)
        for name in DECIDED_BY_SYSTEM:
            del described["settings"][name]
        return {
            "versions": dict(self.versions),
            "processor": processor_name(),
            "cores": cores(),
            **({"waiting": waiting()} if self.apart else {}),
            "texts": {text.name: text.describe() for text in self.texts},
            **described,
            "systems": {system.label: system.describe() for system in self.systems},
            "warmup": self.warmup,
        }

    def pending(self, runs: Iterable[Run]) -> list[Round]:
        """Return the rounds that are not complete, in the order in which they are to be run.

        Args:
            runs: those that there are.
        """
        done = {(run.system, run.device, run.batch, run.text, run.round) for run in runs}
        device, rounds = device_name(self.base.device), []
        for batch, text, number in product(self.batches, self.texts, self.rounds):
            # Another order each time, and the same when resumed: so that no system always has the
            # machine when it is busy, or comes after the same one.
            turn = Random(number).sample(self.systems, len(self.systems))
            here = device, batch, text.name, number
            if missing := [s for s in turn if (s.label, *here) not in done]:
                rounds.append(Round(batch, text, number, missing))
        return rounds

    def job(self, system: System, one: Round) -> Job:
        """Return what a system loads and decodes in a round."""
        text, batches = one.text, one.text.batches(one.batch)
        if system.strategy != CTRANSLATE2:
            settings = replace(system.settings, batch=one.batch)
            return TranslatorJob(settings, [[text.lines[i] for i in batch] for batch in batches])
        assert self.model is not None
        return CTranslate2Job(
            str(self.model),
            system.precision,
            system.threads,
            [[text.tokens[i] for i in batch] for batch in batches],
            [[text.most[i] for i in batch] for batch in batches],
            self.base.limits.min_len,
        )


def run_experiment(experiment: Experiment, folder: RunFolder, note: Note) -> Iterator[Run]:
    """Make the runs that are missing, each when it is asked for; it is on the disk when it comes.

    Systems are loaded for one batch size and text at a time, all before the first of them runs:
    what a controller learns of one text, it does not know on another.

    Args:
        folder: entered.
        note: is told what is being done.

    Raises:
        CheckpointError, InferenceError: models that cannot be used, a system that failed, a folder
            that cannot be written to.
        ValueError: settings that do not fit the models.
    """
    rounds = experiment.pending(folder.runs)
    for _, here in groupby(rounds, key=lambda one: (one.batch, one.text.name)):
        for run in _run_rounds(experiment, list(here), note):
            folder.add(run)
            yield run


def _run_rounds(experiment: Experiment, rounds: Sequence[Round], note: Note) -> Iterator[Run]:
    """Runs of rounds that differ in nothing but their numbers."""
    first = rounds[0]
    systems = {system.label: system for one in rounds for system in one.systems}
    jobs = {label: experiment.job(system, first) for label, system in systems.items()}
    if not experiment.apart:
        note("loading")
        # Once for nothing: libraries that are loaded with the first system are nobody's.
        drafts = max(systems.values(), key=lambda system: system.settings.drafts)
        experiment.job(drafts, first).load()
    with ExitStack() as stack:
        workers: dict[str, Job] = {}
        for label, job in jobs.items():
            if experiment.apart:
                job = stack.enter_context(SystemProcess(label, job, systems[label].threads))
            workers[label] = job
        for label, worker in workers.items():
            note(f"loading {label}")
            worker.load()
        # One at a time, since some measure what a step takes.
        for label, worker in workers.items():
            note(f"warming up {label}")
            worker.decode(-(-experiment.warmup // first.batch))
        for one in rounds:
            where = [one.text.name] * bool(one.text.name) + [f"batch {one.batch}"]
            for system in one.systems:
                note(f"{', '.join(where)}, round {one.number}: {system.label}")
                yield timed_run(system, workers[system.label], one)


def timed_run(system: System, worker: Job, one: Round) -> Run:
    """Have all batches decoded once."""
    text, batches = one.text, one.text.batches(one.batch)
    order = [i for batch in batches for i in batch]
    seed = one.number if system.draws else None
    began = datetime.now(timezone.utc).isoformat(timespec="seconds")
    decoded = worker.decode(len(batches), seed)
    columns = dict(decoded.columns)
    pairs = zip(decoded.seconds, batches, strict=True)
    columns["seconds"] = [round(seconds, 6) for seconds, batch in pairs for _ in batch]
    if one.number == 1 or system.draws:
        columns["output"] = [
            said if isinstance(said, str) else text.joined(said) for said in decoded.outputs
        ]
    else:
        columns.pop("accepted_by_step", None)
    return Run(
        system=system.label,
        text=text.name,
        device=device_name(system.settings.device),
        batch=one.batch,
        round=one.number,
        began=began,
        sentences=len(text.lines),
        seconds=sum(decoded.seconds),
        by_sentence=in_order(columns, [text.lines[i].number for i in order]),
        memory=decoded.memory,
        **{"engine": system.engine, "precision": system.precision, **decoded.figures},
    )
