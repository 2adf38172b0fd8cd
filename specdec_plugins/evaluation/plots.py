"""Plots of an experiment: times, and verifier calls against discarded tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from specdec_plugins.evaluation.table import Result
from specdec_plugins.files.output import whole_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")
#: Colours of Okabe and Ito (2008), which the colour-blind can tell apart, then four of Tol (2021):
#: as many as there are controllers and other systems.
COLORS = (
    *("#0072B2", "#CC79A7", "#009E73", "#D55E00", "#56B4E9", "#E69F00", "#999999", "#000000"),
    *("#882255", "#AA4499", "#DDCC77", "#332288"),
)


def draw(groups: Sequence[Sequence[Result]]) -> Iterator[tuple[str, Figure]]:
    """Yield the plots by name, with a panel for each text, batch size and number of threads."""
    # Only here: matplotlib is an extra. Without pyplot, which looks for a display.
    from matplotlib.figure import Figure

    drafting = [[r for r in group if r.middle("discard_rate")] for group in groups]
    for name, panel, shown in (("speed", _speed, groups), ("pareto", _pareto, drafting)):
        filled = [group for group in shown if len(group) > 1]
        if not filled:
            continue
        bars = max(12, *map(len, filled))
        figure = Figure(figsize=(7 * len(filled), 2 + 0.35 * bars), layout="constrained")
        for axes, group in zip(figure.subplots(1, len(filled), squeeze=False)[0], filled):
            panel(axes, group)
            where = group[0].where
            axes.set_title(f"{where.text.name}, batch {where.batch}, threads {where.threads}")
        yield name, figure


def _speed(axes: Axes, group: Sequence[Result]) -> None:
    """Draw milliseconds a sentence, median and range."""
    colors = _colors(group)
    for index, result in enumerate(group):
        times = result.values("milliseconds")
        middle = result.middle("milliseconds") or 0.0
        error = [[middle - min(times)], [max(times) - middle]]
        axes.barh(index, middle, xerr=error, color=colors[result.settings.policy], capsize=2)
        axes.text(max(times), index, f" {middle:.3g}", va="center", fontsize=8)
    axes.set_yticks(range(len(group)), [result.system for result in group])
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel("milliseconds a sentence (less is better)")


def _pareto(axes: Axes, group: Sequence[Result]) -> None:
    """Draw the verification rate against the discard rate, a curve for each controller.

    A head cuts a draft that the drafter has made: only discarded tokens that were verified show it.
    """
    for policy, color in _colors(group).items():
        of_policy = [result for result in group if result.settings.policy == policy]
        of_policy.sort(key=lambda result: result.middle("verified_discard_rate") or 0.0)
        xs, ys = (
            [result.middle(name) or 0.0 for result in of_policy]
            for name in ("verified_discard_rate", "verification_rate")
        )
        axes.plot(xs, ys, marker="o", color=color, label=policy)
        for result, x, y in zip(of_policy, xs, ys):
            axes.annotate(result.system.partition("@")[2], (x, y), fontsize=7)
    axes.set_xlabel("tokens verified and not accepted, per committed token")
    axes.set_ylabel("verifier calls per committed token")
    axes.legend()


def _colors(group: Sequence[Result]) -> dict[str, str]:
    """Return the colour of each controller or other system, in the order of the group."""
    return dict(zip(dict.fromkeys(result.settings.policy for result in group), cycle(COLORS)))


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure in each of ``FORMATS``, whose names are appended to ``path``."""
    for kind in FORMATS:
        with whole_file(path.with_name(f"{path.name}.{kind}")) as file:
            figure.savefig(file, format=kind, dpi=130)
