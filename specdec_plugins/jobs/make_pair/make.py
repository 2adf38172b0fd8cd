"""The making of a pair, stage by stage, a rehearsal of it on a few lines, and the pair's card."""

from __future__ import annotations

import json
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from specdec_plugins.files.errors import SpecdecError, counted
from specdec_plugins.files.output import (
    JsonObject,
    file_digest,
    work_folder,
    write_json,
    write_whole,
)
from specdec_plugins.jobs.make_pair import stages, text, training
from specdec_plugins.jobs.make_pair.job import Done, PairJob

STAGES = (
    stages.check,
    text.segment,
    stages.distil,
    training.train,
    stages.export,
    stages.measure,
)
#: Size of a rehearsal.
TRIED_LINES = 300
TRIED_UPDATES = 8


def make(job: PairJob, last: str | None = None) -> Done:
    """Do what is not done yet, and note it in ``work/done.json``; return the facts of each stage.

    A stage is done again where the budget of a plan, or a file of the stage before it, is another.

    Args:
        last: the stage to end with; None: all, and the card.
    """
    layout = job.layout
    with work_folder(job.out, layout.work / "job.json", job.describe()):
        done: Done = json.loads(layout.done.read_bytes()) if layout.done.exists() else {}
        made_of: JsonObject = {}
        for stage in STAGES:
            name = stage.__name__
            if name == "train":
                made_of |= {"hours": job.hours, "updates": job.updates}
            record = done.get(name, {"files": {}})
            if record.get("made_of") != made_of or record["files"] != digests(job, record["files"]):
                job.say(f"{name} …")
                # An interrupted stage has no "made_of": its time counts, too.
                spent = 0.0 if "made_of" in record else record.get("seconds", 0.0)
                begin = time.monotonic() - spent
                try:
                    facts = stage(job, done)
                except BaseException as error:
                    if not done and isinstance(error, SpecdecError):
                        shutil.rmtree(layout.pair, True)  # another verifier may take its place
                        raise
                    done[name] = {"files": {}, "seconds": time.monotonic() - begin}
                    write_json(layout.done, done)
                    raise
                done[name] = {
                    **facts,
                    "seconds": time.monotonic() - begin,
                    "made_of": None if facts.get("interrupted") else made_of,
                    "files": digests(job, (path.relative_to(job.out) for path in facts["files"])),
                }
                write_json(layout.done, done)
            made_of = dict(done[name]["files"])
            if name == last:
                return done
        write_whole(layout.card, [card(job, done).encode()])
    return done


def digests(job: PairJob, names: Iterable[str | Path]) -> dict[str, str]:
    """Return the digest of each of these files in ``OUT`` that is there."""
    return {str(name): file_digest(job.out / name) for name in names if (job.out / name).is_file()}


def rehearse(job: PairJob) -> Iterator[str]:
    """Try a job on its first lines; yield the minutes to expect, and the recipe."""
    with tempfile.TemporaryDirectory() as folder:
        few = Path(folder) / "few.txt"
        read = islice(text.worded_lines(job.sources), TRIED_LINES)
        write_whole(few, (line.encode() + b"\n" for line in read))
        small = replace(
            job,
            out=few.parent / "out",
            sources=few,
            workers=None,
            hours=None,
            updates=TRIED_UPDATES,
        )
        done = make(small, "train")
        recipe = small.layout.recipe.read_text("utf-8")
        distilled = json.loads(small.layout.distilling.read_bytes())
    lines = sum(1 for _ in text.worded_lines(job.sources))
    pace = done["train"]["pace"]
    tried = sum(done["segment"]["lines"].values())
    distilling = distilled["seconds"]["total"] * lines / tried
    updates = job.updates
    if updates is None:
        updates = int(training.time_to_train(job, distilling) * (1 - training.SHARE) / pace)
    seconds = {
        f"distil {counted(lines, 'line')}": distilling,
        f"train by {counted(updates, 'update')}": updates * pace / (1 - training.SHARE),
        "export, measure": training.FINISH,
    }
    for name, value in seconds.items():
        yield f"{name}: about {value / 60:.1f} minutes here"
    yield f"\nThe drafter's recipe, here for {TRIED_UPDATES} updates:\n\n{recipe}"
    yield "Next: the same command without --dry-run."


def card(job: PairJob, done: Done) -> str:
    """Return a pair's card."""
    segmented = done["segment"]
    distilled = done["distil"]
    train = done["train"]
    learned = distilled["learned"]
    measured = done["measure"]
    verifier = "\n".join(f"- {fact}" for fact in done["check"]["verifier"])
    curve = "\n".join(f"| {updates} | {length:.2f} |" for updates, length in train["points"])
    for name, length in measured["acceptance_length"].items():
        curve += f"\n| at the end, {name} | {length:.2f} |"
    example = shlex.join([str(job.layout.pair), "--input-path", str(job.layout.example)])
    precision = "float16" if job.half else "its own"
    lines = sum(segmented["lines"].values())
    interrupted = ""
    if train["interrupted"]:
        interrupted = "Training was interrupted; the same command goes on with it."
    return f"""\
# {" to ".join(job.languages)}: a verifier and its drafter

`pair/` is a folder that every command takes:

    specdec-translate {example}

## What it is made of

{verifier}
- {lines} lines of {job.sources.name}: {learned["train"]} to learn from,
  {learned["valid"]} to measure on; left out: {segmented["too_long"]} too long for the encoder,
  {distilled["run_on"]} whose output ran into the length limit
- The drafter drafts from {done["export"]["draft_vocabulary"] or "all"} tokens.
- Precision of the verifier: {precision}; of the drafter: float16.

## How well it drafts

{interrupted}
Acceptance length (tokens a step, the bonus token and EOS counted) on the held-out lines, after
{60 * train["hours"]:.1f} minutes of training by {train["processor"]}:

| updates | acceptance length |
|---|---|
{curve}

## How fast it is

{measured["speed"].strip() or "Not measured: specdec-tune is for CPUs."}

## How it was checked

{done["check"]["checked"]}

{measured["exact"]}
"""
