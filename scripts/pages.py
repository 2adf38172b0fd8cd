#!/usr/bin/env python3
"""Insert measured figures into the pages.

    scripts/pages.py            # write
    scripts/pages.py --check    # say which pages and figures have parted; exit status 1

Between ``<!-- table: NAME key=value ... -->`` and ``<!-- end -->`` a page has a table made of
``docs/figures/NAME.json``, which is the ``summary.json`` of specdec-benchmark or specdec-evaluate,
or what specdec-exactness --json or specdec-calibrate-head --json wrote. Of benchmarks
``view=short`` and ``view=quality`` show some columns, ``threads=1`` and the like some systems, and
``timed=NAME,NAME`` adds the times of other runs of the same systems; of evaluations ``view=texts``
compares texts, and ``drafters=PART,PART`` compares the drafter, called as ``own=`` says, with those
of the evaluations NAME-PART (in both a hyphen stands for a space).
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
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs" / "figures"
BLOCK = re.compile(r"(<!-- table: (\w[\w.-]*)((?: [\w-]+=[^ ]+)*) -->\n).*?(<!-- end -->)", re.S)
Json = dict[str, Any]
SPREADS = "medians (least to most)"
OTHERS = ("AR", "CTranslate2 float32")
"""What a benchmark compares output with."""
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


def benchmark_table(figures: Json, wanted: dict[str, str]) -> Iterator[str]:
    """Of specdec-benchmark: systems against time, quality and memory."""
    if "timed" in wanted:
        yield from whole_table(figures, wanted.pop("timed").split(","), wanted)
        return
    view = wanted.pop("view", None)
    systems = _systems(figures, wanted)
    times: dict[str, Callable[[Json], str]] = {
        "ms per sentence": lambda s: spread(s["milliseconds_a_sentence"]),
        f"x {figures['baseline']}": lambda s: spread(s["speed_over_baseline"], 2),
    }
    views: dict[str | None, dict[str, Callable[[Json], str]]] = {
        "short": {**times, "acceptance length": _length},
        "quality": {**_quality(figures), **_unlike(systems)},
        None: {
            **times,
            **_quality(figures),
            "verification rate": lambda s: number(s["verification_rate"], 3),
            "discard rate": lambda s: number(s["discard_rate"], 2),
            "memory, MiB": lambda s: number(s["peak_memory_mib"], 0),
        },
    }
    if view not in views:
        raise ValueError(f"table {figures['name']}: there is no view={view}")
    columns = {"system": _named, **views[view]}
    yield from rows(columns, systems)
    yield ""
    signed = f"; sacreBLEU `{figures['bleu_signature']}`" if "BLEU" in columns else ""
    about = f"{_rounds(figures, systems, SPREADS)}; {made_with(figures)}"
    yield f"*{about}{signed}.*"


def whole_table(figures: Json, timed: list[str], wanted: dict[str, str]) -> Iterator[str]:
    """Medians of time as in the runs named ``timed``, whose first one has the memory, too; and the
    quality of the same systems, as far as it is in ``figures``."""
    measured = {system["name"]: system for system in _systems(figures, wanted)}
    columns: dict[str, Callable[[Json], str]] = {"system": _named}
    for name, make in _quality(figures).items():
        columns[name] = partial(_made, make, measured)
    systems: dict[str, Json] = {}
    machine = figures["machine"]
    quality = f"{_rounds(figures, list(measured.values()))}{earlier(figures)}"
    notes = [f"BLEU and acceptance length: {quality}"]
    for name in timed:
        one = read_figures(name)
        beside = _systems(one, wanted)
        by_name = {system["name"]: system for system in beside}
        parted = [n for n, s in by_name.items() if n in measured and _differ(s, measured[n])]
        if parted:
            raise ValueError(f"table {name}: {parted[0]} has another controller or rule there")
        systems |= by_name
        how = f"batch {beside[0]['batch']}, {counted(beside[0]['threads'], 'thread')}"
        if len(by_name) < len(beside) or f"ms, {how}" in columns:
            raise ValueError(f"table {name}: has a system or a batch size that is there already")
        columns |= {
            f"ms, {how}": partial(_median, by_name, "milliseconds_a_sentence"),
            f"x, {how}": partial(_median, by_name, "speed_over_baseline"),
        }
        columns.setdefault("MiB", partial(_memory, by_name))
        notes.append(
            f"time: {_rounds(one, beside)}, x: over {one['baseline']}"
            f"{_elsewhere(one['machine'], machine)}{earlier(one)}"
        )
    yield from rows(columns, list(systems.values()))
    yield ""
    signed = f"sacreBLEU `{figures['bleu_signature']}`"
    yield f"*{'; '.join(notes)}; {conditions(machine)}; {signed}.*"


def _systems(figures: Json, wanted: dict[str, str]) -> list[Json]:
    """Those whose fields are as wanted.

    Raises:
        ValueError: there is none.
    """
    found = [s for batch in figures["batches"] for s in batch["systems"] if _is(s, wanted)]
    if not found:
        raise ValueError(f"no system of the figures has {wanted}")
    return found


def _quality(figures: Json) -> dict[str, Callable[[Json], str]]:
    """Columns of BLEU, as far as it was counted, and acceptance."""
    every = [s for batch in figures["batches"] for s in batch["systems"]]
    split = any(s.get("tokenised_bleu") is not None for s in every)
    return {
        "BLEU": lambda s: number(s["bleu"], 1),
        **({"tokenised BLEU": lambda s: number(s["tokenised_bleu"], 1)} if split else {}),
        "acceptance length": _length,
    }


def _length(system: Json) -> str:
    return number(system["acceptance_length"], 2)


def _unlike(systems: list[Json]) -> dict[str, Callable[[Json], str]]:
    """Columns of how many lines differ from those of others, as far as they are among them."""
    return {
        f"lines unlike {other}": partial(_count, f"lines_unlike_{other.replace(' ', '_')}")
        for other in OTHERS
        if any(system["name"].startswith(other) for system in systems)
    }


def _count(field: str, system: Json) -> str:
    return number(system.get(field), 0)


def _rounds(figures: Json, systems: list[Json], shown: str = "medians") -> str:
    """Of what, how often, and what of that is shown."""
    first = systems[0]
    count = first["milliseconds_a_sentence"]["rounds"]
    batches = " ".join(sorted({str(system["batch"]) for system in systems}))
    several = f"{shown} of {count} alternating rounds"
    return (
        f"{figures['text']['lines']} lines, batch {batches}, {counted(first['threads'], 'thread')}"
        f", {'one round' if count == 1 else several}"
    )


def _differ(one: Json, other: Json) -> bool:
    """Whether systems of one name are not the same."""
    return any(_set(one.get(part)) != _set(other.get(part)) for part in ("controller", "rule"))


def _set(settings: Json | None) -> Json | None:
    """Without options that have no value: older figures lack some."""
    if settings is None:
        return None
    return {name: value for name, value in settings.items() if value is not None}


def _made(make: Callable[[Json], str], by_name: dict[str, Json], system: Json) -> str:
    """What ``make`` makes of the system of that name, if it was measured."""
    return make(by_name[system["name"]]) if system["name"] in by_name else ""


def _median(by_name: dict[str, Json], field: str, system: Json) -> str:
    """Of the system of that name, if it was timed."""
    value = by_name.get(system["name"], {}).get(field)
    return number(value and value["median"], 2 if value and value["median"] < 10 else 1)


def _memory(by_name: dict[str, Json], system: Json) -> str:
    return number(by_name.get(system["name"], {}).get("peak_memory_mib"), 0)


def sweep_table(figures: Json, wanted: dict[str, str]) -> Iterator[str]:
    """Of specdec-evaluate: controllers against speed and rates."""
    groups = figures["groups"]
    if "view" in wanted:
        yield from texts_table(figures)
        return
    if "drafters" in wanted:
        yield from drafters_table(figures, wanted)
        return
    names = list(dict.fromkeys(s["system"] for group in groups for s in group["systems"]))
    by_group = [{s["system"]: s for s in group["systems"]} for group in groups]
    columns: dict[str, Callable[[str], str]] = {
        "system": str,
        "acceptance length": lambda n: number(_first(by_group, n)["acceptance_length"], 2),
        "verification rate": lambda n: number(_first(by_group, n)["verification_rate"], 3),
        "discard rate": lambda n: number(_first(by_group, n)["discard_rate"], 2),
        "of verified": lambda n: number(_first(by_group, n)["verified_discard_rate"], 2),
    }
    parts = [group["conditions"].split(", ") for group in groups]
    shared = [part for part in parts[0] if all(part in others for others in parts)]
    for own, systems in zip(parts, by_group):
        head = ", ".join(["x AR", *(part for part in own if part not in shared)])
        columns[head] = lambda n, s=systems: spread(s[n]["speed_over_AR"], 2) if n in s else ""
    yield from rows(columns, [n for n in names if _is(_first(by_group, n), wanted)])
    yield ""
    lines = max(s["sentences"] for s in by_group[0].values())
    yield f"*{lines} lines; {', '.join(shared)}; {made_with(figures)}.*"


def texts_table(figures: Json) -> Iterator[str]:
    """BLEU of AR and of the drafter, and acceptance lengths, of every text."""
    groups = [{s["system"]: s for s in group["systems"]} for group in figures["groups"]]
    columns: dict[str, Callable[[dict[str, Json]], str]] = {"text": lambda g: g["AR"]["text"]}
    for name, system in groups[0].items():
        if system["controller"] is None:
            columns[f"BLEU of {name}"] = lambda g, n=name: number(g[n]["bleu"]["median"], 1)
        else:
            columns[name] = lambda g, n=name: number(g[n]["acceptance_length"], 2)
    yield from rows(columns, groups)
    yield ""
    said = {group["conditions"].rpartition(": ")[2] for group in figures["groups"]}
    lines = {group["AR"]["sentences"] for group in groups}
    if len(said) > 1 or len(lines) > 1:
        raise ValueError("view=texts: the texts differ in more than their name")
    yield f"*{lines.pop()} lines; {said.pop()}; {made_with(figures)}.*"


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
    columns: dict[str, Callable[[str], str]] = {"drafter": str}
    for place, group in enumerate(figures["groups"]):
        text = f"{group['systems'][0]['text']}, " if len(figures["groups"]) > 1 else ""
        for system in group["systems"]:
            if system["controller"] and _is(system, wanted):
                tell = partial(_system_of, drafters, place, system["system"])
                name = text + system["system"]
                columns[name] = lambda d, t=tell: number(t(d)["acceptance_length"], 2)
                if system["speed_over_AR"]["rounds"] > 1:
                    columns[f"{name}, x AR"] = lambda d, t=tell: spread(t(d)["speed_over_AR"], 2)
    yield from rows(columns, list(drafters))
    yield ""
    every = {(how.rpartition(": ")[2], lines) for how, lines, *_ in said}
    if len(every) > 1:
        raise ValueError("drafters: the texts differ in more than their name")
    how, lines = every.pop()
    yield f"*{lines} lines; {how}; {made_with(figures)}.*"


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
    columns: dict[str, Callable[[Json], str]] = {
        "compared": lambda c: c["compared"],
        "lines that differ": lambda c: f"{c['differ']} of {c['lines']}",
        "gap in nats, largest": lambda c: number(c["largest_gap"], 3),
        "median": lambda c: number(c["median_gap"], 3),
    }
    yield from rows(columns, figures["comparisons"])
    yield ""
    yield f"*Engine {figures['engine']}, precision {figures['precision']}; {made_with(figures)}.*"


def calibration_table(figures: Json, wanted: dict[str, str]) -> Iterator[str]:
    """Of specdec-calibrate-head: how well a head foresees tokens and whole drafts."""
    items = [
        (f"{stage}, {of}", figures[stage][name])
        for stage in ("uncalibrated", "calibrated")
        for name, of in (("token", "single tokens"), ("survival", "survival"))
    ]
    columns: dict[str, Callable[[tuple[str, Json]], str]] = {
        "prediction": lambda item: item[0],
        "slots": lambda item: number(item[1]["slots"], 0),
        "accepted": lambda item: number(item[1]["observed"], 3),
        "predicted": lambda item: number(item[1]["predicted"], 3),
        "AUROC": lambda item: number(item[1]["auroc"], 3),
        "ECE": lambda item: number(item[1]["ece"], 3),
        "Brier": lambda item: number(item[1]["brier"], 3),
    }
    yield from rows(columns, items)


KINDS: dict[str, Callable[[Json, dict[str, str]], Iterator[str]]] = {
    "batches": benchmark_table,
    "groups": sweep_table,
    "comparisons": exactness_table,
    "calibrated": calibration_table,
}
"""By a field that only such figures have."""


def _named(system: Json) -> str:
    """A system, and what runs it: its own name leaves PyTorch out."""
    name, precision = system["name"], system["precision"]
    ours = system["strategy"] not in ("CTranslate2", "fairseq")
    if not ours or system["engine"] != "eager":
        return str(name)
    return f"{name.removesuffix(precision)}eager {precision}"


def _is(fields: Json, wanted: dict[str, str]) -> bool:
    return all(str(fields.get(key)) in value.split(",") for key, value in wanted.items())


def _first(groups: list[dict[str, Json]], name: str) -> Json:
    return next(group[name] for group in groups if name in group)


def rows(columns: dict[str, Callable[[Any], str]], items: list[Any]) -> Iterator[str]:
    """A Markdown table."""
    yield f"| {' | '.join(columns)} |"
    yield "|" + "---|" * len(columns)
    for item in items:
        yield f"| {' | '.join(make(item) for make in columns.values())} |"


def number(value: float | None, digits: int) -> str:
    """A figure, or nothing."""
    return "" if value is None else f"{value:.{digits}f}"


def spread(value: Json | None, digits: int | None = None) -> str:
    """A median, and least to most."""
    if value is None:
        return ""
    places = digits if digits is not None else (2 if value["median"] < 10 else 1)
    return f"{value['median']:.{places}f} ({value['low']:.{places}f} to {value['high']:.{places}f})"


def made_with(figures: Json) -> str:
    """Where, when and with what, and of which models."""
    return conditions(figures["machine"]) + earlier(figures)


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


def _elsewhere(machine: Json, usual: Json) -> str:
    """What is not as usual."""
    parts = zip(conditions(machine).split("; "), conditions(usual).split("; "), strict=True)
    own = [part for part, other in parts if part != other]
    return f" ({'; '.join(own)})" if own else ""


def counted(number: int, what: str) -> str:
    """So many of something."""
    return f"{number} {what}{'s' * (number != 1)}"


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args()
    parted = []
    for page in pages():
        text = page.read_text("utf-8")
        try:
            made = render(text)
        except ValueError as error:
            print(f"pages.py: {page.relative_to(ROOT)}: {error}", file=sys.stderr)
            return 2
        if made != text:
            parted.append(page.relative_to(ROOT))
            if not args.check:
                page.write_text(made, "utf-8")
    for name in parted:
        print(f"{name}: {'differs from its figures' if args.check else 'written'}")
    return int(args.check and bool(parted))


if __name__ == "__main__":
    sys.exit(main())
