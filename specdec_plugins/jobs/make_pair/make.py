"""A making from its first stage to its last, what is done of it, and what it would take."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.lock import work_folder
from specdec_plugins.files.output import JsonObject, file_digest, write_json
from specdec_plugins.inference.pair_folder import DRAFTER
from specdec_plugins.jobs.make_pair.card import write_card
from specdec_plugins.jobs.make_pair.commands import Runner
from specdec_plugins.jobs.make_pair.job import PairJob
from specdec_plugins.jobs.make_pair.progress import Progress
from specdec_plugins.jobs.make_pair.schedule import BEST, Schedule
from specdec_plugins.jobs.make_pair.stages import Stages
from specdec_plugins.jobs.make_pair.text import FEW

logger = logging.getLogger(__name__)

FINISH, OF_HEADS = 180.0, 300.0
"""Seconds that are kept for exporting and measuring, and for a head; at most a quarter of all."""


@dataclass(frozen=True)
class Stage:
    """A step of the making, which is done or not."""

    name: str
    run: Callable[[], JsonObject]
    reads: tuple[Path, ...] = ()
    """Files of stages before it: where they have changed, it is to be done again."""


class Making:
    """The stages of a job in their order, and their records ``work/STAGE.json``."""

    def __init__(self, job: PairJob, runner: Runner, progress: Progress) -> None:
        self.job, self.progress = job, progress
        self.stages = Stages(job, runner, progress)
        self.layout = job.layout

    def make(self, last: str | None = None) -> bool:
        """Do what is not done yet.

        Args:
            last: the stage to end with; None: all, and the card.

        Returns:
            whether the drafter's budget was spent; False: training was interrupted.

        Raises:
            SpecdecError: what stopped it; what is done is kept.
            KeyboardInterrupt: it was interrupted before there was a drafter.
        """
        check_room(self.job)
        stopped = False
        with work_folder(self.job.out, self.layout.work / "job.json", self.job.describe(), "OUT"):
            for stage in self._order():
                made_of = {path.name: file_digest(path) for path in stage.reads}
                if self.record(stage.name).get("made_of") == made_of:
                    continue
                self.progress.say(f"{stage.name} …")
                begin = time.monotonic()
                facts = stage.run()
                if stage.name == "segment" and last is None:
                    warn_of_little(self.job, facts)
                stopped |= bool(facts.get("stopped"))
                seconds = time.monotonic() - begin
                self._keep(stage.name, {"made_of": made_of, "seconds": seconds, "facts": facts})
                if stage.name == last:
                    return True
            write_card(self.job, {name: self.facts(name) for name in NAMES})
        return not stopped

    def _order(self) -> Iterator[Stage]:
        stages, layout = self.stages, self.layout
        drafter = layout.pair / DRAFTER
        yield Stage("check", stages.check)
        yield Stage("segment", stages.segment)
        lines = self.facts("segment")["lines"]
        yield Stage("distil", lambda: stages.distil(lines))
        yield Stage("train", lambda: stages.train(self.schedule()))
        yield Stage("export", stages.export, (layout.training / BEST,))
        if self.job.heads:
            yield Stage("heads", lambda: stages.heads(lines["head"]), (drafter,))
        yield Stage("measure", stages.measure, (drafter,))

    def schedule(self) -> Schedule:
        """The budget of the drafter's training: what the other stages leave of all hours."""
        if self.job.hours is None:
            return Schedule(updates=self.job.updates)
        whole = 3600 * self.job.hours
        spent = sum(self.record(name).get("seconds", 0) for name in ("check", "segment", "distil"))
        kept = min(FINISH + (OF_HEADS if self.job.heads else 0), whole / 4)
        if whole - spent - kept <= 0:
            raise InferenceError(
                f"--hours {self.job.hours:g}: {spent / 3600:.2f} hours went into what comes before "
                "the training; what is done is kept, but for more hours begin in another folder"
            )
        return Schedule(seconds=whole - spent - kept)

    def facts(self, name: str) -> JsonObject:
        """What a stage said of what it made."""
        facts: JsonObject = self.record(name).get("facts", {})
        return facts

    def record(self, name: str) -> JsonObject:
        """What was noted of a stage that is done; nothing if it is not."""
        try:
            record: JsonObject = json.loads((self.layout.work / f"{name}.json").read_bytes())
        except FileNotFoundError:
            return {}
        return record

    def _keep(self, name: str, record: JsonObject) -> None:
        """Note that a stage is done; of a training that was interrupted, what it has made."""
        if record["facts"].get("stopped"):
            record["made_of"] = None
        write_json(self.layout.work / f"{name}.json", record)


NAMES = ("check", "segment", "distil", "train", "export", "heads", "measure")


def check_room(job: PairJob) -> None:
    folder = next(path for path in (job.out, *job.out.resolve().parents) if path.exists())
    # Text, segmented, as outputs and as numbers; checkpoints with an optimizer's two moments.
    size = job.sources.stat().st_size
    needed = 8 * size + 6 * job.verifier.stat().st_size
    if job.layout.training.exists():
        return
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise InferenceError(
            f"OUT {job.out}: about {needed / 1e9:.1f} GB are needed there, and {free / 1e9:.1f} "
            "are free; make room, or name another folder"
        )


def warn_of_little(job: PairJob, facts: JsonObject) -> None:
    """Say so where a drafter cannot learn much."""
    lines = sum(facts["lines"].values())
    if lines < FEW:
        logger.warning(
            "SOURCES %s: has %d lines; of fewer than some ten thousand a drafter learns to foresee "
            "little: give more text, of other sentences",
            job.sources,
            lines,
        )
