"""Plots of an experiment: speed, where time goes, calls, discarded tokens and lengths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import chain, cycle
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from specdec_plugins.decoding.statistics import OTHER, PHASES
from specdec_plugins.evaluation.experiment import Run
from specdec_plugins.evaluation.table import Result
from specdec_plugins.files.output import whole_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")
GREY = "#999999"
#: Colours of Okabe and Ito (2008), which the colour-blind can tell apart, then four of Tol (2021):
#: as many as there are controllers and other systems.
COLORS = (
    *("#0072B2", "#CC79A7", "#009E73", "#D55E00", "#56B4E9", "#E69F00", GREY, "#000000"),
    *("#882255", "#AA4499", "#DDCC77", "#332288"),
)
#: The one part of a sentence's time of a system that tells none.
WHOLE = "whole"


def draw(groups: Sequence[Sequence[Result]], baseline: str) -> Iterator[tuple[str, Figure]]:
    """Yield the plots by name, with a panel for each text, batch size and number of threads.

    Args:
        groups: the results of all systems under the same conditions.
        baseline: the system that others are compared with.
    """
    # Only here: matplotlib is an extra. Without pyplot, which looks for a display.
    from matplotlib.figure import Figure

    drafting = [[r for r in group if r.middle("discard_rate") > 0] for group in groups]
    speed = partial(_speed, baseline=baseline)
    # Bars compare at least two systems; a point or a curve says something by itself.
    for name, panel, shown, least in (
        ("speed", speed, groups, 2),
        ("parts", _parts, groups, 2),
        ("pareto", _pareto, drafting, 1),
        ("lengths", _lengths, drafting, 1),
    ):
        filled = [group for group in shown if len(group) >= least]
        if not filled:
            continue
        height = 6 if shown is drafting else 1.5 + 0.4 * max(map(len, filled))
        figure = Figure(figsize=(7 * len(filled), height), layout="constrained")
        for axes, group in zip(figure.subplots(1, len(filled), squeeze=False)[0], filled):
            panel(axes, group)
            where = group[0].where
            text = Path(where.text.name).name
            axes.set_title(f"{text}, batch {where.batch}, threads {where.threads}")
        yield name, figure


def _speed(axes: Axes, group: Sequence[Result], baseline: str) -> None:
    """Draw how many times as fast as the baseline systems are: medians and ranges over rounds."""
    colors = _colors(group)
    (other,) = (result for result in group if result.system == baseline)
    for index, result in enumerate(group):
        ratios = result.speed_over(other)
        if not ratios:
            continue
        middle = median(ratios)
        error = [[middle - min(ratios)], [max(ratios) - middle]]
        axes.barh(index, middle, xerr=error, color=colors[result.settings.policy], capsize=2)
        label = f" {middle:.2f} ({result.middle('milliseconds'):.3g} ms)"
        axes.text(max(ratios), index, label, va="center", fontsize=8)
    axes.set_yticks(range(len(group)), [result.system for result in group])
    axes.invert_yaxis()
    axes.margins(x=0.35)  # for the labels
    axes.set_xlabel(f"times as fast as {baseline} (milliseconds a sentence)")


def _parts(axes: Axes, group: Sequence[Result]) -> None:
    """Draw the milliseconds of a sentence by phase: medians over rounds."""
    ends = [0.0] * len(group)
    colors = dict(zip((*PHASES, OTHER), COLORS)) | {WHOLE: GREY}
    for part, color in colors.items():
        widths = [median(_milliseconds(run, part) for run in result.runs) for result in group]
        axes.barh(range(len(group)), widths, left=ends, color=color, label=part)
        ends = [end + width for end, width in zip(ends, widths)]
    axes.set_yticks(range(len(group)), [result.system for result in group])
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds a sentence")
    axes.legend(loc="lower right")


def _milliseconds(run: Run, part: str) -> float:
    """Return those of a part of a sentence; all of a system that tells no parts is whole."""
    parts = run.parts or {WHOLE: run.seconds}
    return 1000 * parts.get(part, 0.0) / len(run.outputs)


def _pareto(axes: Axes, group: Sequence[Result]) -> None:
    """Draw the verification rate against discard rates, a curve for each controller.

    A head cuts a draft that the drafter has made. So there are two points for each system: of the
    tokens that were verified, and of all that were drafted.
    """
    for policy, color in _colors(group).items():
        of_policy = [result for result in group if result.settings.policy == policy]
        of_policy.sort(key=lambda result: result.middle("verified_discard_rate"))
        verified = [result.middle("verified_discard_rate") for result in of_policy]
        drafted = [result.middle("discard_rate") for result in of_policy]
        calls = [result.middle("verification_rate") for result in of_policy]
        axes.plot(verified, calls, marker="o", color=color, label=policy)
        axes.hlines(calls, verified, drafted, color=color, linestyle="dotted")
        axes.plot(drafted, calls, "o", color=color, fillstyle="none")
        for result, x, y in zip(of_policy, verified, calls):
            label = result.system.partition("@")[2]
            axes.annotate(label, (x, y), (6, 6), textcoords="offset points", fontsize=7)
    axes.annotate(
        "better", (0.5, 0.9), (0.56, 0.96), "axes fraction", arrowprops={"arrowstyle": "->"}
    )
    axes.margins(0.35)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("discarded per committed token: verified (full) and drafted (hollow) tokens")
    axes.set_ylabel("verifier calls per committed token")
    axes.legend(loc="upper left")


def _lengths(axes: Axes, group: Sequence[Result]) -> None:
    """Draw how often steps verify how many tokens, in the first round.

    The oracle verifies what will be accepted, so its curve shows the best lengths.
    """
    for result, color in zip(group, cycle(COLORS)):
        counts = Counter(chain.from_iterable(item.verified for item in result.runs[0].sentences))
        lengths = range(max(counts, default=0) + 1)
        shares = [counts[length] / max(counts.total(), 1) for length in lengths]
        axes.plot(lengths, shares, marker="o", color=color, label=result.system)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("tokens that a step verifies (the oracle: those that are accepted)")
    axes.set_ylabel("share of steps")
    axes.legend()


def check_installed(remedy: str) -> None:
    """Refuse to plot without matplotlib."""
    if find_spec("matplotlib") is None:
        raise ValueError(f"plots need matplotlib: pip install matplotlib, or {remedy}")


def _colors(group: Sequence[Result]) -> dict[str, str]:
    """Return the colour of each controller or other system, in the order of the group."""
    return dict(zip(dict.fromkeys(result.settings.policy for result in group), cycle(COLORS)))


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure in each of ``FORMATS``, whose names are appended to ``path``."""
    for kind in FORMATS:
        with whole_file(path.with_name(f"{path.name}.{kind}")) as file:
            figure.savefig(file, format=kind, dpi=130)
