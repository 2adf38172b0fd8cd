"""The making of a pair, stage by stage, a rehearsal of it on a few lines, and the pair's card."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from specdec_plugins.evaluation.plots import new_figure, save_figure
from specdec_plugins.files.errors import counted
from specdec_plugins.files.lock import work_folder
from specdec_plugins.files.output import JsonObject, file_digest, write_json, write_whole
from specdec_plugins.inference.pair_folder import DRAFTER
from specdec_plugins.jobs.make_pair import stages
from specdec_plugins.jobs.make_pair.job import Done, PairJob, shown
from specdec_plugins.jobs.make_pair.text import worded_lines
from specdec_plugins.jobs.make_pair.training import BEST, SHARE, Plan, TrainingLog

STAGES = (
    stages.check,
    stages.segment,
    stages.distil,
    stages.plan,
    stages.train,
    stages.export,
    stages.heads,
    stages.measure,
)
TRIED_LINES, TRIED_UPDATES = 300, 8
"""Size of a rehearsal."""


def make(job: PairJob, last: str | None = None) -> Done:
    """Do what is not done yet, and note it in ``work/done.json``; return the facts of each stage.

    Args:
        last: the stage to end with; None: all, and the card.

    Raises:
        SpecdecError: a stage failed; what is done is kept.
        KeyboardInterrupt: it was interrupted before there was a drafter.
    """
    layout = job.layout
    with work_folder(job.out, layout.mark, job.describe(), "OUT"):
        done: Done = json.loads(layout.done.read_bytes()) if layout.done.exists() else {}
        for stage in STAGES:
            name = stage.__name__
            if name == "heads" and not job.heads:
                continue
            made_of = inputs(job, name, done)
            if not is_done(job.out, done.get(name, {}), made_of):
                job.say(f"{name} …")
                begin = time.monotonic()
                facts = stage(job, done)
                files = {str(path.relative_to(job.out)): path for path in facts.get("files", ())}
                done[name] = {
                    **facts,
                    "seconds": time.monotonic() - begin,
                    "made_of": None if facts.get("interrupted") else made_of,
                    "files": {name: file_digest(path) for name, path in files.items()},
                }
                write_json(layout.done, done)
            if name == last:
                return done
        write_card(job, done)
    return done


def inputs(job: PairJob, stage: str, done: Done) -> JsonObject:
    """Return the inputs of a stage beside the job's; where they changed, it is done again."""
    if stage == "plan":
        return {"hours": job.hours, "updates": job.updates}
    if stage == "train":
        return {name: done["plan"][name] for name in ("hours", "updates")}
    drafter = job.layout.pair / DRAFTER
    read = {"export": job.layout.training / BEST, "heads": drafter, "measure": drafter}
    return {path.name: file_digest(path) for name, path in read.items() if name == stage}


def is_done(out: Path, record: JsonObject, made_of: JsonObject) -> bool:
    """Return whether a stage was done with these inputs, and all that it made is as it was."""
    files = {out / name: digest for name, digest in record.get("files", {}).items()}
    return record.get("made_of") == made_of and all(
        path.is_file() and file_digest(path) == digest for path, digest in files.items()
    )


def rehearse(job: PairJob) -> Iterator[str]:
    """Try a job on its first lines; yield each stage's expected hours, and the recipe."""
    lines = sum(1 for _ in worded_lines(job.sources))
    with tempfile.TemporaryDirectory() as folder:
        few = Path(folder) / "few.txt"
        read = islice(worded_lines(job.sources), TRIED_LINES)
        write_whole(few, (f"{line}\n".encode() for line in read))
        small = replace(job, out=few.parent / "out", sources=few, heads=False, workers=None)
        small = replace(small, hours=None, updates=TRIED_UPDATES)
        done = make(small, "train")
        recipe, log = small.layout.recipe.read_text("utf-8"), TrainingLog(small.layout.log)
        decoding = json.loads(small.layout.distilling.read_bytes())["seconds"]["total"]
    share = lines / sum(done["segment"]["lines"].values())
    seconds = {
        "check": done["check"]["seconds"],
        "segment": share * (done["segment"]["seconds"] - done["segment"]["loading"]),
        "distil": share * decoding,
    }
    if job.updates is None:
        left = stages.time_to_train(job, sum(seconds.values()))
        plan = Plan.of_time(left, log, 0, 0.0)
    else:
        plan = Plan.of_updates(job.updates)
    seconds["train"] = plan.updates * log.pace / (1 - SHARE)
    seconds["heads, measure"] = stages.FINISH + stages.FOR_HEADS * job.heads
    yield f"{counted(lines, 'line')} of text, {counted(plan.updates, 'update')} of training"
    yield from (f"{name}: about {value / 3600:.2f} hours" for name, value in seconds.items())
    yield f"all: about {sum(seconds.values()) / 3600:.2f} hours here"
    yield f"\nThe drafter's recipe, here for {TRIED_UPDATES} updates:\n\n{recipe}"


def write_card(job: PairJob, done: Done) -> None:
    """Write the card, and the curve of the training where matplotlib is installed."""
    drawn = find_spec("matplotlib") is not None
    if drawn:
        figure = new_figure((7, 4))
        axes = figure.subplots()
        axes.plot(*zip(*done["train"]["points"], strict=True), marker="o")
        axes.set(xlabel="updates", ylabel="acceptance length, held-out lines, whole blocks")
        axes.grid(alpha=0.3)
        save_figure(figure, job.layout.curve)
    write_whole(job.layout.card, (f"{line}\n".encode() for line in _card(job, done, drawn)))


def _card(job: PairJob, done: Done, drawn: bool) -> Iterator[str]:
    source, target = job.languages
    train, measured = done["train"], done["measure"]
    yield f"# {source} to {target}: a verifier and its drafter"
    yield "\n`pair/` is a folder that every command takes:\n"
    yield f"    {shown(['specdec-translate', job.layout.pair, '--input-path'])} FILE"
    yield "\n## What it is made of\n"
    yield from (f"- {fact}" for fact in (*done["check"]["verifier"], *_text_and_models(job, done)))
    yield "\n## How well it drafts\n"
    if train["interrupted"]:
        yield "Training was interrupted; the command that made this goes on with it.\n"
    yield (
        "Acceptance length (tokens a step, the bonus token and EOS counted) on the held-out lines, "
        f"after {counted(train['points'][-1][0], 'update')} and {train['hours']:.2f} hours by "
        f"{train['processor']}:\n"
    )
    if drawn:
        yield "![acceptance length over updates](curve.png)\n"
    yield "| updates | acceptance length |\n|---|---|"
    yield from (f"| {updates} | {length:.2f} |" for updates, length in train["points"])
    for name, length in measured["acceptance_length"].items():
        yield f"\nAcceptance length on the held-out lines at the end, {name}: {length:.2f}"
    yield "\n## How fast it is\n"
    yield measured["speed"].strip() or "Not measured: specdec-tune is for CPUs."
    yield "\n## How it was checked\n"
    yield f"{done['check']['checked']}\n\n{measured['exact']}"


def _text_and_models(job: PairJob, done: Done) -> Iterator[str]:
    segmented, distilled = done["segment"], done["distil"]
    learned, count = distilled["learned"], done["export"]["draft_vocabulary"]
    precision = "in float16" if job.half else "in its own precision"
    for_head = f", {learned['head']} for the head" if job.heads else ""
    yield (
        f"{sum(segmented['lines'].values())} lines of {job.sources.name}: {learned['train']} to "
        f"learn from, {learned['valid']} to measure on{for_head}; left out: "
        f"{segmented['too_long']} longer than the encoder's positions, "
        f"{distilled.get('run_on', 0)} whose output ran to the length limit"
    )
    ratio = distilled["output_tokens"] / distilled["source_tokens"]
    repeated = distilled.get("repeated", 0)
    yield (
        f"The verifier's outputs have {ratio:.2f} times the tokens of their sources; {repeated} "
        "repeat themselves"
    )
    yield f"The drafter ({job.arch}) drafts from {'all' if count is None else count} tokens."
    yield f"The verifier is stored {precision}, the drafter in float16."
