"""A sweep: alternating timed runs of every system, those that are there already left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product
from random import Random

import torch

from specdec_plugins.checkpoints.head_file import find_head
from specdec_plugins.evaluation.folder import SweepFolder
from specdec_plugins.evaluation.memory import MemoryGrowth
from specdec_plugins.evaluation.runs import Run
from specdec_plugins.evaluation.systems import System
from specdec_plugins.evaluation.texts import Text
from specdec_plugins.evaluation.timing import Batches, plan_batches, timed_run, warm_up
from specdec_plugins.files.json_object import JsonObject
from specdec_plugins.files.paths import file_digest
from specdec_plugins.inference.loading import load_translator
from specdec_plugins.inference.report import device_name, versions
from specdec_plugins.inference.run_files import describe_settings
from specdec_plugins.inference.settings import Settings
from specdec_plugins.inference.translator import Translator
from specdec_plugins.machine import cores, processor_name

DECIDED_BY_RUN = ("batch", "device", "controller", "block_size", "strategy", "trace", "beam")
"""Settings that a run's own record tells, or that do nothing here."""


def check_counts(repeats: int, batches: Sequence[int], warmup: int) -> None:
    """
    Raises:
        ValueError: a number of rounds, rows or lines that cannot be, naming its flag.
    """
    for flag, value in (("--repeats", repeats), *(("--batch", n) for n in batches)):
        if value < 1:
            raise ValueError(f"{flag} {value}: must be at least 1")
    if warmup < 0:
        raise ValueError(f"--warmup {warmup}: must be 0 or more")


@dataclass(frozen=True)
class Sweep:
    """What is to be run: every system, in every round, on every text, at every batch size, on every
    device."""

    systems: Sequence[System]
    texts: Sequence[Text]
    devices: Sequence[str] = ("cpu",)
    batches: Sequence[int] = (1,)
    repeats: int = 5
    """Rounds; where tokens are drawn there is one for each seed instead."""
    warmup: int = 16
    """Lines that a system decodes before its first run here; at least one batch."""
    seeds: Sequence[int] = (1,)
    trace: bool = False
    """Record every step of one round, or of every seed, in a pass that is not timed."""

    def __post_init__(self) -> None:
        """
        Raises:
            ValueError: a number that cannot be, naming its flag.
        """
        check_counts(self.repeats, self.batches, self.warmup)
        given = " ".join(map(str, self.seeds))
        if len(self.seeds) > 1 and not self._draws:
            raise ValueError(f"--seed {given}: several are for --sampling")
        if min(self.seeds) < 0 and self._draws:
            raise ValueError(f"--seed {given}: must be 0 or more")
        # Settings says what does not go with a device.
        for system in self.systems:
            for device in self.devices:
                replace(system.settings, device=device)

    @property
    def _draws(self) -> bool:
        """Whether tokens are drawn."""
        return any(system.settings.rule.draws for system in self.systems)

    @property
    def rounds(self) -> Sequence[int]:
        """Their numbers, which are the seeds where tokens are drawn."""
        return self.seeds if self._draws else range(1, self.repeats + 1)

    def describe(self) -> JsonObject:
        """All that decides a run and is not told by its own record; files by their content."""
        base = self._richest()
        described = describe_settings(base)
        head = base.controller["acceptance_head"] or (base.path and find_head(base.path, base.rule))
        if head and any(system.asks_head for system in self.systems):
            described["models"]["acceptance_head"] = file_digest(head)
        for name in DECIDED_BY_RUN:
            del described["settings"][name]
        return {
            "versions": versions(),
            "processor": processor_name(),
            "cores": cores(),
            "threads": torch.get_num_threads(),
            "texts": {text.name: text.describe() for text in self.texts},
            **described,
            "systems": {system.name: system.describe() for system in self.systems},
            "warmup": self.warmup,
            "trace": self.trace,
        }

    def _richest(self) -> Settings:
        """The settings of a system that names most files."""
        return max(
            (system.settings for system in self.systems),
            key=lambda settings: (settings.drafts, bool(settings.controller["acceptance_head"])),
        )

    def pending(self, runs: Iterable[Run]) -> list[Round]:
        """The rounds that are not complete, in the order in which they are to be run.

        Args:
            runs: those that there are.
        """
        done = {(run.system, run.device, run.batch, run.text, run.round) for run in runs}
        rounds = []
        for device, batch, text in product(self.devices, self.batches, self.texts):
            here = device_name(device), batch, text.name
            for number in self.rounds:
                # Another order each time, and the same when resumed: so that no system always has
                # the machine when it is busy, or comes after the same one.
                turn = Random(number).sample(self.systems, len(self.systems))
                missing = [s for s in turn if (s.name, *here, number) not in done]
                if missing:
                    rounds.append(Round(device, batch, text, number, missing))
        return rounds


@dataclass(frozen=True)
class Round:
    """One run of every system, as far as it is still to be made."""

    device: str
    batch: int
    text: Text
    number: int
    systems: Sequence[System]


def run_sweep(sweep: Sweep, folder: SweepFolder, note: Callable[[str], object]) -> Iterator[Run]:
    """Make the runs that are missing, each when it is asked for; it is on the disk when it comes.

    Systems are loaded for one device, batch size and text at a time, all before the first of them
    runs: what a controller learns of one text, it does not know on another.

    Args:
        folder: entered.
        note: is told what is being done.

    Raises:
        CheckpointError, InferenceError: models that cannot be used, a folder that cannot be
            written to.
        ValueError: settings that do not fit the models.
    """
    rounds = sweep.pending(folder.runs)
    for _, here in groupby(rounds, key=lambda one: (one.device, one.batch, one.text.name)):
        yield from _run_rounds(sweep, list(here), folder, note)


@dataclass
class _Loaded:
    """A system that is ready."""

    translator: Translator
    held: int | None
    """Bytes that it has in memory; None where that cannot be known."""

    @classmethod
    def load(cls, settings: Settings) -> _Loaded:
        growth = MemoryGrowth(settings.device)
        return cls(load_translator(settings), growth.now())

    def warm_up(self, batches: Batches) -> None:
        """Decode for nothing; what that leaves in memory is the system's."""
        growth = MemoryGrowth(self.translator.settings.device)
        warm_up(self.translator, batches)
        left = growth.now()
        self.held = None if self.held is None or left is None else self.held + left


def _run_rounds(
    sweep: Sweep, rounds: Sequence[Round], folder: SweepFolder, note: Callable[[str], object]
) -> Iterator[Run]:
    """Rounds of one device, batch size and text."""
    device, size, text = rounds[0].device, rounds[0].batch, rounds[0].text
    at_work = {system.name: system for one in rounds for system in one.systems}
    settings = {
        name: replace(system.settings, device=device, batch=size)
        for name, system in at_work.items()
    }
    note("loading")
    # Once for nothing: libraries that are loaded with the first system are nobody's.
    codec = load_translator(max(settings.values(), key=lambda own: own.drafts)).codec
    batches = plan_batches(codec, text.lines, size)
    loaded = {}
    for name, own in settings.items():
        note(f"loading {name}")
        loaded[name] = _Loaded.load(own)
    for name, one in loaded.items():
        note(f"warming up {name}")
        one.warm_up(batches[: -(-sweep.warmup // size)])
    for turn in rounds:
        for system in turn.systems:
            where = [text.name] * bool(text.name) + [f"batch {size}", f"round {turn.number}"]
            note(f"{', '.join(where)}: {system.name}")
            one = loaded[system.name]
            about = batches, turn.number, text.name, sweep.trace, one.held
            run = timed_run(system, one.translator, *about)
            folder.add(run)
            yield run
