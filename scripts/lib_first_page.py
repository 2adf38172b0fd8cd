"""What README says of speed: its claim, its table and the chart, all of the same few systems.

A system is chosen by what it is, not by its name: of several that do one job (with drafts or
without, kernels of one kind or another) the fastest stands for all.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from specdec_plugins.evaluation.table import Json, counted, markdown, number, systems_of

OURS = ("AR", "specdec")
KINDS: dict[str, dict[str, tuple[object, ...]]] = {
    "fairseq, beam 5": {"strategy": ("fairseq",), "beam": (5,)},
    "fairseq, beam 1": {"strategy": ("fairseq",), "beam": (1,)},
    "CTranslate2, float32": {"strategy": ("CTranslate2",), "precision": ("float32",)},
    "CTranslate2, int8": {"strategy": ("CTranslate2",), "precision": ("int8",)},
    "specdec, same words": {
        "strategy": OURS,
        "precision": ("float32",),
        "rule": (None, "strict"),
    },
    "specdec, int8": {"strategy": OURS, "precision": ("int8",), "rule": (None, "strict")},
}
"""What each row stands for, and which systems do that job: those whose fields are among these."""
SAME = "specdec, same words"
BLUE = "#0072b2"
COLOURS = {"fairseq": "#999999", "CTranslate2": "#e69f00", "specdec": BLUE}
"""The colours of Okabe and Ito (2008), which the colour-blind can tell apart."""


@dataclass(frozen=True)
class Row:
    """One kind of system."""

    label: str
    system: Json
    """The fastest of its kind."""

    @property
    def milliseconds(self) -> Json:
        """Milliseconds a sentence over the rounds."""
        found: Json = self.system["milliseconds_a_sentence"]
        return found

    @property
    def speed(self) -> str:
        """How many times as fast as fairseq's greedy search."""
        return number(self.system["speed_over_baseline"]["median"], 1)


def rows(figures: Json) -> list[Row]:
    """The rows whose kind was measured.

    Raises:
        ValueError: speeds are not over fairseq's greedy search, or of several numbers of threads
            or batch sizes.
    """
    name, systems = figures["name"], systems_of(figures)
    if figures["baseline"] != "fairseq beam 1":
        raise ValueError(f"table {name}: the first page wants speeds over fairseq beam 1")
    if len({(system["threads"], system["batch"]) for system in systems}) > 1:
        raise ValueError(f"table {name}: the first page wants one batch size and thread count")
    found = []
    for label, wanted in KINDS.items():
        fit = [one for one in systems if _is_of(one, wanted)]
        if fit:
            best = min(fit, key=lambda s: float(s["milliseconds_a_sentence"]["median"]))
            found.append(Row(_labelled(label, best), best))
    return found


def _precisions(system: Json) -> tuple[str, str | None]:
    """Those of the verifier and of drafts, which have a field of their own in older summaries."""
    own, _, drafts = system["precision"].partition(", ")
    return own, drafts.removesuffix(" drafts") or system.get("drafter_precision")


def _is_of(system: Json, wanted: Json) -> bool:
    """Return whether the fields of a system are among those wanted."""
    fields = {**system, "precision": _precisions(system)[0]}
    return all(fields[key] in values for key, values in wanted.items())


def _labelled(label: str, system: Json) -> str:
    """The label, and for ours what it took."""
    if system["strategy"] not in OURS:
        return label
    parts = [label]
    parts += ["no drafts"] * (system["strategy"] == "AR")
    parts += [f"{drafts} drafts" for drafts in _precisions(system)[1:] if drafts]
    return ", ".join(parts)


def first_table(figures: Json, quality: list[Json]) -> Iterator[str]:
    """Milliseconds, speed and BLEU of each kind."""
    scores = _by_name(quality)
    yield from markdown(
        {
            "one sentence at a time": lambda row: row.label,
            "ms a sentence": lambda row: number(row.milliseconds["median"], 1),
            "times as fast": lambda row: row.speed,
            "BLEU": lambda row: number(_bleu(scores, row.system), 1),
        },
        rows(figures),
    )


def claim(figures: Json, quality: list[Json]) -> Iterator[str]:
    """The one sentence.

    Raises:
        ValueError: nobody counted whether the words are the same.
    """
    row = next(row for row in rows(figures) if row.label.startswith(SAME))
    scored = _by_name(quality).get(row.system["system"], {})
    unlike = scored.get("lines_unlike_CTranslate2_float32")
    if unlike is None:
        raise ValueError(f"table {figures['name']}: no quality of {row.system['system']}")
    but = f" in all but {unlike} of {scored['sentences']} lines" if unlike else ""
    cores = counted(row.system["threads"], "core").replace("1 core", "one core")
    words = (
        f"**specdec runs a fairseq translation model {row.speed} times as fast as fairseq's own "
        f"greedy search, and writes the same words{but}: one sentence at a time, on {cores} of an "
        f"{figures['machine']['processor']}.**"
    )
    yield from textwrap.wrap(words, 120, break_on_hyphens=False)


def _by_name(quality: list[Json]) -> dict[str, Json]:
    return {system["system"]: system for figures in quality for system in systems_of(figures)}


def _bleu(scores: dict[str, Json], system: Json) -> float | None:
    bleu = scores.get(system["system"], {}).get("bleu")
    return None if bleu is None else float(bleu["median"])


WIDTH, LEFT, RIGHT, BAR, GAP, HEAD, MARGIN = 860, 250, 150, 18, 6, 52, 16
"""Of the chart, in pixels: the whole, the labels, the numbers, a bar, what is between two, the head
of a panel, and the edge."""


def chart(panels: list[tuple[str, str, list[Row]]]) -> str:
    """Milliseconds a sentence as SVG: a panel a processor, a bar a kind of system.

    Args:
        panels: the processor, how it was measured, and the rows.
    """
    height = 2 * MARGIN + sum(HEAD + len(found) * (BAR + GAP) + 3 * GAP for _, _, found in panels)
    parts, top = [], MARGIN
    for title, about, found in panels:
        parts.append(text(MARGIN, top + 12, title, "head"))
        parts.append(text(MARGIN, top + 32, about, "soft"))
        top += HEAD
        longest = max(float(row.milliseconds["high"]) for row in found)
        for row in found:
            parts += _bar(row, top, (WIDTH - LEFT - RIGHT) / longest)
            top += BAR + GAP
        top += 3 * GAP
    return picture(height, parts)


def picture(height: int, parts: list[str]) -> str:
    """SVG of these parts."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
            f'viewBox="0 0 {WIDTH} {height}">',
            "<style>text { font: 13px 'DejaVu Sans', Helvetica, Arial, sans-serif; fill: #1b1b1b } "
            ".head { font-weight: bold } .soft { fill: #5a5a5a; font-size: 12px }</style>",
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _bar(row: Row, top: int, scale: float) -> Iterator[str]:
    """A row: its label, the median as a bar, least to most as a line, and the figures."""
    low, middle, high = (scale * float(row.milliseconds[key]) for key in ("low", "median", "high"))
    base, half = top + 14, top + BAR / 2
    colour = COLOURS[row.label.partition(",")[0]]
    yield text(MARGIN, base, row.label)
    yield f'<rect x="{LEFT}" y="{top}" width="{middle:.1f}" height="{BAR}" fill="{colour}"/>'
    yield (
        f'<line x1="{LEFT + low:.1f}" x2="{LEFT + high:.1f}" y1="{half}" y2="{half}" '
        'stroke="#1b1b1b"/>'
    )
    took = number(row.milliseconds["median"], 1)
    yield text(LEFT + high + 8, base, f"{took} ms, {row.speed} times")


def text(x: float, y: float, words: str, kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y}"{style}>{html.escape(words)}</text>'
