"""Plots of an experiment: times, verified against discarded tokens, what the oracle verifies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specdec_plugins.evaluation.table import Result
from specdec_plugins.files.output import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")
COLORS = ("#0072B2", "#CC79A7", "#009E73", "#D55E00", "#56B4E9", "#E69F00", "#999999")
"""Colours of Okabe and Ito (2008), which the colour-blind can tell apart."""


def check_plotting(instead: str = "or give --no-plots") -> None:
    """Refuse to plot without matplotlib, an extra; say what to do ``instead``."""
    if find_spec("matplotlib") is None:
        raise ValueError(f"the plots need matplotlib: pip install matplotlib, {instead}")


def draw(groups: Sequence[Sequence[Result]]) -> Iterator[tuple[str, Figure]]:
    """Yield the plots by name, with a panel for each text, batch size and number of threads."""
    drafting = [[r for r in group if r.middle("discard_rate")] for group in groups]
    oracles = [[r for r in group if r.system.policy == "oracle"] for group in groups]
    for name, panel, shown in (
        ("speed", _speed, groups),
        ("pareto", _pareto, drafting),
        ("oracle", _oracle, oracles),
    ):
        filled = [group for group in shown if group]
        if not filled:
            continue
        figure = new_figure((7 * len(filled), 2 + 0.35 * max(12, *map(len, filled))))
        for axes, group in zip(figure.subplots(1, len(filled), squeeze=False)[0], filled):
            panel(axes, group)
            where = group[0].where
            axes.set_title(f"{where.text.name}, batch {where.batch}, threads {where.threads}")
        yield name, figure


def _speed(axes: Axes, group: Sequence[Result]) -> None:
    """Draw milliseconds a sentence, median and range."""
    for index, result in enumerate(group):
        times, middle = result.values("milliseconds"), result.middle("milliseconds") or 0.0
        error = [[middle - min(times)], [max(times) - middle]]
        axes.barh(index, middle, xerr=error, color=_color(result), capsize=2)
        axes.text(max(times), index, f" {middle:.3g}", va="center", fontsize=8)
    axes.set_yticks(range(len(group)), [result.system.name for result in group])
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel("milliseconds a sentence (less is better)")


def _pareto(axes: Axes, group: Sequence[Result]) -> None:
    """Draw the verification rate against the discard rate, a curve for each controller."""
    for policy in dict.fromkeys(result.system.policy for result in group):
        of_policy = [result for result in group if result.system.policy == policy]
        of_policy.sort(key=lambda result: result.middle("discard_rate") or 0.0)
        x, y = (
            [result.middle(name) or 0.0 for result in of_policy]
            for name in ("discard_rate", "verification_rate")
        )
        axes.plot(x, y, marker="o", color=_color(of_policy[0]), label=policy)
        for point in zip([result.system.name.partition("@")[2] for result in of_policy], zip(x, y)):
            axes.annotate(*point, fontsize=7)
    axes.set_xlabel("tokens drafted and not accepted, per committed token")
    axes.set_ylabel("verifier calls per committed token")
    axes.legend()


def _oracle(axes: Axes, group: Sequence[Result]) -> None:
    """Draw the oracle's verify lengths, mean and deviation, by position in the sentence.

    As in Mamou et al., *Dynamic Speculation Lookahead Accelerates Speculative Decoding of Large
    Language Models*, 2024, figure 2.
    """
    for result in group:
        means, deviations = by_tenths(result.runs[0].sentences["accepted_by_step"])
        axes.errorbar(range(5, 100, 10), means, deviations, capsize=3, label=result.system.name)
    axes.set_xlabel("position in the sentence, %")
    axes.set_ylabel("drafted tokens that will be accepted")
    axes.legend(title="the bound of chains, not a real decoder")


def by_tenths(sentences: Sequence[Sequence[int]]) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of the steps' values, by tenths of their sentences.

    A step of a sentence of n steps stretches over an n-th of it, and counts in each tenth by the
    share that it has there.
    """
    tenths = np.arange(10)[:, None]
    edges = [np.linspace(0, 10, len(steps) + 1) for steps in sentences]
    shares = np.concatenate([np.diff(np.clip(edge - tenths, 0, 1)) for edge in edges], axis=1)
    values, weights = np.concatenate(sentences), shares.sum(1)
    mean = shares @ values / weights
    deviation = np.sqrt((shares @ values**2 / weights - mean**2).clip(0))
    return mean.tolist(), deviation.tolist()


def _color(result: Result) -> str:
    return COLORS[sum(map(ord, result.system.policy)) % len(COLORS)]


def new_figure(size: tuple[float, float]) -> Figure:
    """Return an empty figure of this size in inches."""
    # Only here: matplotlib is an extra. Without pyplot, which looks for a display.
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure in each of ``FORMATS``, whose names are appended to ``path``."""
    import matplotlib

    # The same runs give the same bytes.
    with matplotlib.rc_context({"svg.hashsalt": "specdec"}):
        for kind in FORMATS:
            buffer = BytesIO()
            date = {"Date": None} if kind == "svg" else None
            figure.savefig(buffer, format=kind, dpi=130, metadata=date)
            write_whole(path.with_name(f"{path.name}.{kind}"), [buffer.getvalue()])
