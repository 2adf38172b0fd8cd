#!/usr/bin/env python3
"""Insert measured figures into the pages, and draw the pictures of them.

    scripts/pages.py            # write
    scripts/pages.py --check    # say which pages and pictures have parted; exit status 1

Between ``<!-- table: NAME key=value ... -->`` and ``<!-- end -->`` a page has a table made of
``docs/figures/NAME.json``, which is the ``summary.json`` of specdec-benchmark or specdec-evaluate,
or what specdec-exactness, specdec-calibrate-head, gpu_check.py, check_tuning.py or symbols.py wrote
by --json, or train.json of specdec-make-pair. Of summaries ``view=short`` and ``view=quality`` show
some columns, ``view=groups`` compares speed across batch sizes and the like, and ``view=texts``
compares texts; ``threads=1`` and the like choose systems. ``drafters=PART,PART`` compares the
drafter, called as ``own=`` says, with those of the summaries NAME-PART (in both a hyphen stands for
a space). README has ``view=first``, one table of a few kinds of systems, and ``view=claim``, its
first sentence; both have BLEU of the runs ``quality=NAME,NAME``.

The pictures are speed.svg, of the same kinds of systems; curve.svg, of curve.json; and trace.svg,
of trace.json, which is a line of ``specdec-translate --trace``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import lib_first_page as first_page  # noqa: E402
from lib_curve import curve  # noqa: E402

from specdec_plugins.decoding.controllers.tree import TreePolicy  # noqa: E402
from specdec_plugins.evaluation.table import (  # noqa: E402
    VIEWS,
    Json,
    columns,
    counted,
    filled,
    groups_table,
    markdown,
    number,
    shared_conditions,
    spread,
    systems_of,
    texts_table,
)

FIGURES = ROOT / "docs" / "figures"
BLOCK = re.compile(r"(<!-- table: (\w[\w.-]*)((?: [\w-]+=[^ ]+)*) -->\n).*?(<!-- end -->)", re.S)
SHIPPED = {"verifier": "--AR-path", "drafter": "--path"}
"""Models of a pair, and the flags that name them; without a flag, it is the pair's own."""


def pages() -> list[Path]:
    """README, the manual, and the cards of shipped pairs."""
    cards = sorted((ROOT / "checkpoints").glob("*/README.md"))
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *cards]


def render(page: str) -> str:
    """The page, its tables made anew.

    Raises:
        ValueError: a block that names no figures, or none of a known kind.
    """
    return BLOCK.sub(lambda match: match[1] + table(match[2], match[3].split()) + match[4], page)


def table(name: str, given: list[str]) -> str:
    """A block's content.

    Args:
        given: ``key=value`` that choose rows: those whose fields are so.
    """
    figures = read_figures(name)
    wanted = dict(pair.split("=", 1) for pair in given)
    for key, make in KINDS.items():
        if key in figures:
            return "\n".join(make(figures, wanted)) + "\n"
    raise ValueError(f"table {name}: its figures are neither of {', '.join(KINDS)}")


def read_figures(name: str) -> Json:
    """
    Raises:
        ValueError: there are none of that name.
    """
    path = FIGURES / f"{name}.json"
    if not path.is_file():
        raise ValueError(f"table {name}: there is no {path.relative_to(ROOT)}")
    return {**json.loads(path.read_text("utf-8")), "name": name}


def summary_table(figures: Json, wanted: dict[str, str]) -> Iterator[str]:
    """Of specdec-benchmark and specdec-evaluate: systems against time, quality and memory."""
    if "drafters" in wanted:
        yield from drafters_table(figures, wanted)
        return
    view = wanted.pop("view", None)
    if view in ("first", "claim"):
        yield from first_view(view, figures, wanted.pop("quality").split(","))
        return
    systems = _systems(figures, wanted)
    if view == "groups":
        yield from groups_table(figures, lambda system: _is(system, wanted))
        about = f"{_lines(systems)}; {', '.join(shared_conditions(figures))}"
    elif view == "texts":
        yield from texts_table(figures)
        shared = _alike({group["conditions"].rpartition(": ")[2] for group in figures["groups"]})
        about = f"{_lines(systems)}; {shared}"
    elif view in VIEWS:
        heads = [head for head in VIEWS[view] if _is_told(head, systems)]
        yield from markdown(filled(columns(figures, heads), systems), systems)
        about = _rounds(systems, "medians (least to most)")
    else:
        raise ValueError(f"table {figures['name']}: there is no view={view}")
    signed = figures["bleu_signature"] if view in (None, "quality") else None
    yield ""
    yield f"*{about}; {made_with(figures)}{_signed(signed)}.*"


def first_view(view: str, figures: Json, names: list[str]) -> Iterator[str]:
    """README's first sentence, or its table and what it was measured on."""
    quality = [read_figures(name) for name in names]
    if view == "claim":
        yield from first_page.claim(figures, quality)
        return
    yield from first_page.first_table(figures, quality)
    timed = systems_of(figures)
    machine = figures["machine"]
    scored = max(map(_count, quality))
    yield ""
    yield (
        f"*{machine['processor']}, {counted(timed[0]['threads'], 'thread')}; time: medians over "
        f"{counted(_count(figures), 'line')}, BLEU: {counted(scored, 'line')}"
        f"{earlier(figures)}.*"
    )


def _count(figures: Json) -> int:
    """The lines of the text."""
    return max(int(system["sentences"]) for system in systems_of(figures))


def _is_told(head: str, systems: list[Json]) -> bool:
    """Whether what is compared with is among the systems."""
    other = head.removeprefix("lines unlike ")
    return other == head or any(system["system"].startswith(other) for system in systems)


def _signed(signature: str | None) -> str:
    return f"; sacreBLEU `{signature}`" if signature else ""


def _lines(systems: list[Json]) -> str:
    return counted(max(system["sentences"] for system in systems), "line")


def _alike(parts: set[str]) -> str:
    """What all have in common, and nothing else.

    Raises:
        ValueError: they differ.
    """
    if len(parts) > 1:
        raise ValueError("the texts differ in more than their name")
    return parts.pop()


def _systems(figures: Json, wanted: dict[str, str]) -> list[Json]:
    """Those whose fields are as wanted.

    Raises:
        ValueError: there is none.
    """
    found = [system for system in systems_of(figures) if _is(system, wanted)]
    if not found:
        raise ValueError(f"no system of the figures has {wanted}")
    return found


def _rounds(systems: list[Json], shown: str = "medians") -> str:
    """Of how many lines, under what conditions, how often, and what of that is shown."""
    first = systems[0]
    count = first["milliseconds_a_sentence"]["rounds"]
    batches = " ".join(sorted({str(system["batch"]) for system in systems}))
    several = f"{shown} of {count} alternating rounds"
    how = "one round" if count == 1 else several
    about = f"batch {batches}, {counted(first['threads'], 'thread')}"
    return f"{_lines(systems)}, {about}, {how}"


def drafters_table(figures: Json, wanted: dict[str, str]) -> Iterator[str]:
    """Of several drafters, one of which is these figures' own: acceptance lengths and, where there
    were several rounds, speeds; of every text."""
    parts = wanted.pop("drafters").split(",")
    own = wanted.pop("own", "as-in-the-recipe").replace("-", " ")
    drafters = {own: figures}
    drafters |= {
        part.replace("-", " "): read_figures(f"{figures['name']}-{part}") for part in parts
    }
    said = _of_sweep(figures)
    parted = [name for name, part in drafters.items() if _of_sweep(part) != said]
    if parted:
        raise ValueError(f"drafters={parted[0]}: has parted from what it is compared with")
    made: dict[str, Callable[[str], str]] = {"drafter": str}
    for place, group in enumerate(figures["groups"]):
        text = f"{group['systems'][0]['text']}, " if len(figures["groups"]) > 1 else ""
        for system in group["systems"]:
            if system["controller"] and _is(system, wanted):
                tell = partial(_system_of, drafters, place, system["system"])
                name = text + system["system"]
                made[name] = lambda d, t=tell: number(t(d)["acceptance_length"], 2)
                if system["speed_over_baseline"]["rounds"] > 1:
                    made[f"{name}, x {figures['baseline']}"] = lambda d, t=tell: spread(
                        t(d)["speed_over_baseline"], 2
                    )
    yield from markdown(made, list(drafters))
    yield ""
    how = _alike({conditions.rpartition(": ")[2] for conditions, *_ in said})
    yield f"*{_lines(figures['groups'][0]['systems'])}; {how}; {made_with(figures)}.*"


def _system_of(drafters: dict[str, Json], place: int, name: str, drafter: str) -> Json:
    """A system of a drafter's, of the text at ``place``."""
    systems: list[Json] = drafters[drafter]["groups"][place]["systems"]
    return next(system for system in systems if system["system"] == name)


def _of_sweep(figures: Json) -> list[tuple[Any, ...]]:
    """Of every text under what conditions, how many lines, and by what systems and processor."""
    return [
        (
            group["conditions"],
            group["systems"][0]["sentences"],
            [system["system"] for system in group["systems"]],
            figures["machine"]["processor"],
        )
        for group in figures["groups"]
    ]


def exactness_table(figures: Json, wanted: dict[str, str]) -> Iterator[str]:
    """Of specdec-exactness: what is compared, and how many lines differ."""
    made: dict[str, Callable[[Json], str]] = {
        "compared": lambda c: c["compared"],
        "lines that differ": lambda c: f"{c['differ']} of {c['lines']}",
        "gap in nats, largest": lambda c: number(c["largest_gap"], 3),
        "median": lambda c: number(c["median_gap"], 3),
    }
    yield from markdown(made, figures["comparisons"])
    yield ""
    yield f"*Engine {figures['engine']}, precision {figures['precision']}; {made_with(figures)}.*"


def calibration_table(figures: Json, wanted: dict[str, str]) -> Iterator[str]:
    """Of specdec-calibrate-head: how well a head foresees tokens and whole drafts."""
    items = [
        (f"{stage}, {of}", figures[stage][name])
        for stage in ("uncalibrated", "calibrated")
        for name, of in (("token", "single tokens"), ("survival", "survival"))
    ]
    made: dict[str, Callable[[tuple[str, Json]], str]] = {
        "prediction": lambda item: item[0],
        "slots": lambda item: number(item[1]["slots"], 0),
        "accepted": lambda item: number(item[1]["observed"], 3),
        "predicted": lambda item: number(item[1]["predicted"], 3),
        "AUROC": lambda item: number(item[1]["auroc"], 3),
        "ECE": lambda item: number(item[1]["ece"], 3),
        "Brier": lambda item: number(item[1]["brier"], 3),
    }
    yield from markdown(made, items)


def counts_table(figures: Json, wanted: dict[str, str]) -> Iterator[str]:
    """Of scripts/gpu_check.py count: what a GPU is asked to do for a token."""
    heads = ("launches", "waits", "copies to host", "copies to device", "copies in passing")
    yield f"| system | engine | batch | tokens a step | {' | '.join(heads)} |"
    yield "|---|---|" + "---:|" * (2 + len(heads))
    for one in figures["counted"]:
        numbers = " | ".join(f"{one[head]:.3g}" for head in ("tokens a step", *heads))
        yield f"| {one['system']} | {one['engine']} | {one['batch']} | {numbers} |"
    yield ""
    about = f"{counted(figures['lines'], 'line')}, float32; torch {figures['torch']}"
    yield f"*A committed token, on an emulated GPU; {about}.*"


def symbols_table(figures: Json, wanted: dict[str, str]) -> Iterator[str]:
    """Of scripts/symbols.py: how many of the symbols that translations should have are there."""
    made: dict[str, Callable[[str], str]] = {
        "asked for": str,
        "number": lambda name: str(figures[name]["of"]),
        "in the output": lambda name: str(figures[name]["found"]),
    }
    yield from markdown(made, ["symbols", "strings", "sentences"])


def checked_table(figures: Json, wanted: dict[str, str]) -> Iterator[str]:
    """Of scripts/check_tuning.py: the way that was found beside the fastest, and CTranslate2."""

    def ratio(row: Json, name: str) -> str:
        rounds = row.get(name)
        if not rounds:
            return ""
        return f"{median(rounds):.2f} ({rounds[0]:.2f} to {rounds[-1]:.2f})"

    made: dict[str, Callable[[Json], str]] = {
        "text": lambda row: row["text"],
        "precision": lambda row: row["precision"],
        "batch": lambda row: str(row["batch"]),
        "found by tuning": lambda row: row["found"],
        "fastest here": lambda row: row["fastest"],
        "found, x fastest": lambda row: ratio(row, "fastest over found"),
        "found, x CTranslate2": lambda row: ratio(row, "CTranslate2 over found"),
    }
    rows = [row for row in figures["checked"] if _is(row, wanted)]
    yield from markdown(made, rows)
    threads = counted(figures["machine"]["threads"], "thread")
    rounds = len(rows[0]["fastest over found"])
    yield ""
    yield f"*{threads}, strict, medians of {rounds} rounds; {made_with(figures)}.*"


def trace_words(figures: Json, wanted: dict[str, str]) -> Iterator[str]:
    """Of a line of specdec-translate --trace: in how many steps it was written."""
    steps = figures["steps"]
    tokens = sum(step["accepted"] + (step["bonus"] is not None) for step in steps)
    yield f"**{counted(tokens, 'token')} in {counted(len(steps), 'step')}.**"


def curve_table(figures: Json, wanted: dict[str, str]) -> Iterator[str]:
    """Of train.json of specdec-make-pair: acceptance lengths as the training went on."""
    yield "| updates | minutes | acceptance length |"
    yield "|---:|---:|---:|"
    for point in figures["facts"]["points"]:
        length = f"{point['acceptance_length']:.2f}"
        yield f"| {point['updates']} | {point['seconds'] / 60:.0f} | {length} |"
    yield f"\n*{figures['facts']['processor']}.*"


KINDS: dict[str, Callable[[Json, dict[str, str]], Iterator[str]]] = {
    "groups": summary_table,
    "comparisons": exactness_table,
    "calibrated": calibration_table,
    "counted": counts_table,
    "symbols": symbols_table,
    "checked": checked_table,
    "steps": trace_words,
    "facts": curve_table,
}
"""By a field that only such figures have."""


def _is(fields: Json, wanted: dict[str, str]) -> bool:
    return all(str(fields.get(key)) in value.split(",") for key, value in wanted.items())


def made_with(figures: Json) -> str:
    """Where, when and with what, of which models, and by which trees."""
    return conditions(figures["machine"]) + earlier(figures) + _other_trees(figures)


def _other_trees(figures: Json) -> str:
    """The promise below which trees were drafted anew, if it is not today's default."""
    systems = systems_of(figures) if "groups" in figures else []
    options: list[Json] = [system.get("options") or {} for system in systems]
    found = {one["redraft_below"] for one in options if "redraft_below" in one}
    others = sorted(found - {TreePolicy.redraft_below})
    return f"; `--redraft-below {' '.join(map(str, others))}`" if others else ""


def conditions(machine: Json) -> str:
    """Where and when."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    day = machine["last_run"][:10]
    return f"{machine['processor']}, {counted(machine['cores'], 'core')}; {versions}; {day}"


def earlier(figures: Json) -> str:
    """Of which shipped models figures are that have been replaced since; else nothing."""
    replaced = [name for name, flag in SHIPPED.items() if _is_earlier(figures, name, flag)]
    return f"; of an earlier {' and '.join(replaced)}" if replaced else ""


def _is_earlier(figures: Json, name: str, flag: str) -> bool:
    """Whether the model was a shipped one, and another has taken its place since.

    Figures that do not tell their models, as older ones do, count as new ones.
    """
    digest = figures.get("models", {}).get(name)
    words = shlex.split(figures.get("command", ""))
    if digest is None or len(words) < 2:
        return False
    path = words[words.index(flag) + 1] if flag in words else f"{words[1]}/{name}.pt"
    return path.startswith("checkpoints/") and digest != _digest(ROOT / path)


@cache
def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def draw_speed() -> str:
    """The chart, a panel a kind of processor."""
    panels = []
    for name in SPEED:
        figures = read_figures(name)
        about = (
            f"{_rounds(systems_of(figures))}; times as fast as {figures['baseline']}; "
            f"{figures['machine']['last_run'][:10]}{earlier(figures)}"
        )
        panels.append((figures["machine"]["processor"], about, first_page.rows(figures)))
    return first_page.chart(panels)


def draw_curve() -> str:
    """Acceptance lengths as a pair was made."""
    facts = read_figures("curve")["facts"]
    points = [(point["seconds"] / 60, point["acceptance_length"]) for point in facts["points"]]
    title = "Tokens a step, whole blocks of 8, held-out lines; 1 is a step without drafts"
    about = f"{counted(facts['points'][-1]['updates'], 'update')}; {facts['processor']}"
    return curve(title, about, points)


def draw_trace() -> str:
    """The steps of one sentence."""
    from specdec_plugins.inference.trace_file import SentenceTrace
    from specdec_plugins.inference.trace_picture import draw_sentence

    return draw_sentence(SentenceTrace.from_json((FIGURES / "trace.json").read_bytes()))


SPEED = ("wmt-speed1-epyc", "wmt-speed1-avx2", "wmt-speed1")
"""The runs of the chart's panels."""
PICTURES: dict[str, Callable[[], str]] = {
    "speed.svg": draw_speed,
    "curve.svg": draw_curve,
    "trace.svg": draw_trace,
}


def rendered() -> Iterator[tuple[Path, str]]:
    """Every page and picture, and what it is to be.

    Raises:
        ValueError: a page or picture has no figures; which one is said.
    """
    for path in [*pages(), *(FIGURES / name for name in PICTURES)]:
        try:
            draw = PICTURES.get(path.name)
            yield path, draw() if draw else render(path.read_text("utf-8"))
        except ValueError as error:
            raise ValueError(f"{path.relative_to(ROOT)}: {error}") from error


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args()
    parted = []
    try:
        for path, made in rendered():
            if not path.is_file() or made != path.read_text("utf-8"):
                parted.append(path.relative_to(ROOT))
                if not args.check:
                    path.write_text(made, "utf-8")
    except ValueError as error:
        print(f"pages.py: {error}", file=sys.stderr)
        return 2
    for name in parted:
        print(f"{name}: {'differs from its figures' if args.check else 'written'}")
    return int(args.check and bool(parted))


if __name__ == "__main__":
    sys.exit(main())
