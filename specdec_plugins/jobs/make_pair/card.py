"""The card of a pair: what it was made of, how well it drafts, how fast it is, how it is used."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from specdec_plugins.evaluation.plots import new_figure, save_figure
from specdec_plugins.files.errors import counted
from specdec_plugins.files.output import write_whole
from specdec_plugins.jobs.make_pair.job import Done, PairJob, shown


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
    segmented, distilled, train, measured = (
        done[name] for name in ("segment", "distil", "train", "measure")
    )
    yield f"# {source} to {target}: a verifier and its drafter"
    yield "\n`pair/` is a folder that every command takes:\n"
    yield f"    {shown(['specdec-translate', job.layout.pair, '--input-path'])} FILE"
    yield "\n## What it is made of\n"
    yield from (f"- {fact}" for fact in done["check"]["verifier"])
    learned = distilled["learned"]
    for_head = f", {learned['head']} for the head" if job.heads else ""
    yield (
        f"- {sum(segmented['lines'].values())} lines of {job.sources.name}: {learned['train']} to "
        f"learn from, {learned['valid']} to measure on{for_head}; left out: "
        f"{segmented['too_long']} longer than the encoder's positions, "
        f"{distilled.get('run_on', 0)} whose output ran to the length limit"
    )
    yield (
        "- The verifier's outputs have "
        f"{distilled['output_tokens'] / distilled['source_tokens']:.2f} times the tokens of their "
        f"sources; {distilled.get('repeated', 0)} repeat themselves."
    )
    count = done["export"]["draft_vocabulary"]
    yield f"- The drafter ({job.arch}) drafts from {'all' if count is None else count} tokens."
    precision = "in float16" if job.half else "in its own precision"
    yield f"- The verifier is stored {precision}, the drafter in float16."
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
