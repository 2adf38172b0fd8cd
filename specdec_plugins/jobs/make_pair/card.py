"""The page of a pair: what it was made of, how well it drafts, how fast it is, how it is used."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from specdec_plugins.evaluation.plots import new_figure, save_figure
from specdec_plugins.files.errors import counted
from specdec_plugins.files.output import JsonObject, write_whole
from specdec_plugins.jobs.make_pair.job import PairJob

Facts = dict[str, JsonObject]
"""What each stage said of what it made."""


def write_card(job: PairJob, facts: Facts) -> None:
    """Write the page, and the picture of the curve where matplotlib is installed.

    Raises:
        InferenceError: it cannot be written.
    """
    drawn = find_spec("matplotlib") is not None
    if drawn:
        _draw(facts["train"]["points"], job.layout.curve)
    lines = "\n".join(_card(job, facts, drawn))
    write_whole(job.layout.card, [f"{lines}\n".encode()])


def _draw(points: list[JsonObject], path: Path) -> None:
    figure = new_figure((7, 4))
    axes = figure.subplots()
    updates = [point["updates"] for point in points]
    axes.plot(updates, [point["acceptance_length"] for point in points], marker="o")
    axes.set(xlabel="updates", ylabel="acceptance length, held-out lines, whole blocks")
    axes.grid(alpha=0.3)
    save_figure(figure, path)


def _card(job: PairJob, facts: Facts, drawn: bool) -> Iterator[str]:
    source, target = job.languages
    lines, kept = facts["segment"]["lines"], facts["distil"]["kept"]
    found, measured = facts["distil"], facts["measure"]
    yield f"# {source} to {target}: a verifier and its drafter"
    yield "\n`pair/` is a folder that every command takes:\n"
    yield f"    {shlex.join(['specdec-translate', str(job.layout.pair)])} --input-path FILE"
    yield "\n## What it is made of\n"
    yield from (f"- {fact}" for fact in facts["check"]["verifier"])
    yield (
        f"- {sum(lines.values())} lines of {job.sources.name}: {kept['train']} to learn from, "
        f"{kept['valid']} to measure on"
        + (f", {kept['head']} for the head" if job.heads else "")
        + f"; left out: {facts['segment']['too_long']} longer than the encoder's positions, "
        f"{found.get('run_on', 0)} whose output ran to the length limit"
    )
    ratio = found["output_tokens"] / found["source_tokens"]
    yield (
        f"- The verifier's outputs have {ratio:.2f} times the tokens of their sources; "
        f"{found.get('repeated', 0)} repeat themselves."
    )
    count = facts["export"]["draft_vocabulary"]
    yield f"- The drafter ({job.arch}) drafts from {'all' if count is None else count} tokens."
    precision = "in float16" if job.half else "in its own precision"
    yield f"- The verifier is stored {precision}, the drafter in float16."
    yield "\n## How well it drafts\n"
    yield from _curve(facts["train"], drawn)
    for name, length in measured["acceptance_length"].items():
        yield f"\nAcceptance length on the held-out lines at the end, {name}: {length:.2f}"
    yield "\n## How fast it is\n"
    yield measured["said"].strip() or "Not measured: specdec-tune is for CPUs."
    yield "\n## How it was checked\n"
    yield from (f"    {line}" for line in facts["check"]["said"].splitlines())
    yield f"\n{measured['exact']}"


def _curve(train: JsonObject, drawn: bool) -> Iterator[str]:
    points = train["points"]
    if train["stopped"]:
        yield "Training was interrupted; the command that made this goes on with it.\n"
    yield (
        "Acceptance length (tokens a step, the verifier's own one and EOS counted) on the held-out "
        f"lines, after {counted(points[-1]['updates'], 'update')} by {train['processor']}:\n"
    )
    if drawn:
        yield "![acceptance length over updates](curve.png)\n"
    yield "| updates | hours | acceptance length |\n|---|---|---|"
    for point in points:
        hours = point["seconds"] / 3600
        yield f"| {point['updates']} | {hours:.2f} | {point['acceptance_length']:.2f} |"
