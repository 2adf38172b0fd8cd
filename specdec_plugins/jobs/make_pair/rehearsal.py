"""What a making would do, and how long it would take here: a little of it is tried."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from specdec_plugins.files.errors import counted
from specdec_plugins.files.output import write_whole
from specdec_plugins.jobs.make_pair.commands import Runner
from specdec_plugins.jobs.make_pair.job import PairJob
from specdec_plugins.jobs.make_pair.make import FINISH, OF_HEADS, Making
from specdec_plugins.jobs.make_pair.progress import Progress
from specdec_plugins.jobs.make_pair.schedule import SHARE, Schedule
from specdec_plugins.jobs.make_pair.stages import Stages, head_updates
from specdec_plugins.jobs.make_pair.text import head_lines, worded_lines
from specdec_plugins.jobs.make_pair.training_log import TrainingLog

LINES, UPDATES = 300, 8


def rehearse(job: PairJob, runner: Runner, progress: Progress) -> Iterator[str]:
    """Try a job on its first lines in a folder that is removed again, and tell what all would be.

    Yields lines to read: each stage, its commands, and its expected hours.

    Raises:
        SpecdecError: what would stop it.
    """
    lines = sum(1 for _ in worded_lines(job.sources))
    with tempfile.TemporaryDirectory() as folder:
        seconds, update, recipe = _try(job, Path(folder), lines, runner, progress)
    before = sum(seconds.values())
    after = FINISH + (OF_HEADS if job.heads else 0)
    updates = job.updates
    if updates is None:
        assert job.hours is not None
        left = max(0.0, 3600 * job.hours - before - after)
        updates = int(left * (1 - SHARE) / update)
    training = updates * update / (1 - SHARE)
    heads = head_updates(head_lines(lines)) * update
    seconds |= {"train": training, "heads": heads, "measure": FINISH}
    yield f"{counted(lines, 'line')} of text, {counted(updates, 'update')} of training"
    part = Schedule(updates=updates).next(job.out / "none", TrainingLog(job.out / "none"))
    if part is None:
        yield f"--hours {job.hours}: leaves no time for training; give more"
        return
    for name, commands in Stages(job, runner, progress).commands(part, lines):
        yield f"\n{name}: about {seconds.get(name, 1) / 3600:.2f} hours"
        yield from (f"    {one}" for one in commands)
    yield f"\nall: about {(before + training + after) / 3600:.2f} hours here"
    yield f"\nThe drafter's recipe ({job.out}/work/drafter.yaml):\n\n{recipe}"


def _try(
    job: PairJob, folder: Path, lines: int, runner: Runner, progress: Progress
) -> tuple[dict[str, float], float, str]:
    """Make a smaller job.

    Args:
        lines: of the whole text.

    Returns:
        the seconds of the stages before the training, for the whole text; those of an update; and
        the recipe of the drafter.
    """
    few = folder / "few.txt"
    write_whole(few, (f"{line}\n".encode() for line in islice(worded_lines(job.sources), LINES)))
    small = replace(job, out=folder / "out", sources=few, heads=False, workers=None)
    making = Making(replace(small, hours=None, updates=UPDATES), runner, progress)
    making.make("train")
    layout, share = making.job.layout, lines / LINES
    distilled = json.loads(layout.distilling.read_text("utf-8"))
    seconds = {
        "check": making.record("check")["seconds"],
        "segment": share * making.facts("segment")["seconds"],
        "distil": share * distilled["seconds"]["total"],
    }
    recipe = layout.recipe.read_text("utf-8").replace(str(layout.out), str(job.out))
    return seconds, TrainingLog(layout.log("training")).seconds_an_update or 0.0, recipe
