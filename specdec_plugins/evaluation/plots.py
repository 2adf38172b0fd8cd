"""Plots of an experiment: times, verified against discarded tokens, what the oracle verifies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from specdec_plugins.evaluation.table import Result
from specdec_plugins.files.output import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")
COLORS = ("#0072B2", "#CC79A7", "#009E73", "#D55E00", "#56B4E9", "#E69F00", "#999999")
"""Colours of Okabe and Ito (2008), which the colour-blind can tell apart."""


def check_plotting(instead: str = "or give --no-plots") -> None:
    """
    Raises:
        ValueError: matplotlib, an extra, is not installed; says what to do ``instead``.
    """
    if find_spec("matplotlib") is None:
        raise ValueError(f"the plots need matplotlib: pip install matplotlib, {instead}")


def draw(groups: Sequence[Sequence[Result]]) -> Iterator[tuple[str, Figure]]:
    """Yield the plots by name: ``speed``, and if something drafts ``pareto`` and ``oracle``."""
    yield "speed", draw_speed(groups)
    if any(result.middle("discard_rate") for group in groups for result in group):
        yield "pareto", draw_pareto(groups)
    oracles = [result for group in groups for result in group if result.system.policy == "oracle"]
    if oracles:
        yield "oracle", draw_oracle(oracles[0])


def draw_speed(groups: Sequence[Sequence[Result]]) -> Figure:
    """Draw milliseconds a sentence: a panel for each text, batch size and number of threads."""
    names = list(dict.fromkeys(result.system.name for group in groups for result in group))
    figure = new_figure((4 + 4.5 * len(groups), 1.4 + 0.3 * len(names)))
    panels = figure.subplots(1, len(groups), sharey=True, squeeze=False)[0]
    for axes, group in zip(panels, groups):
        for result in group:
            times = result.values("milliseconds")
            middle = median(times)
            index = names.index(result.system.name)
            error = [[middle - min(times)], [max(times) - middle]]
            axes.barh(index, middle, xerr=error, color=_color(result), capsize=2)
            axes.text(max(times), index, f" {middle:.3g}", va="center", fontsize=8)
        axes.set(title=_title(group), xlabel="milliseconds a sentence (less is better)")
        axes.margins(x=0.15)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    return figure


def draw_pareto(groups: Sequence[Sequence[Result]]) -> Figure:
    """Draw the verification rate against the discard rate, a point for each drafting system."""
    figure = new_figure((7 * len(groups), 6))
    panels = figure.subplots(1, len(groups), sharey=True, squeeze=False)[0]
    for axes, group in zip(panels, groups):
        for policy in dict.fromkeys(result.system.policy for result in group):
            points = sorted(
                (result.middle("discard_rate"), result.middle("verification_rate"), result)
                for result in group
                if result.system.policy == policy and result.middle("discard_rate")
            )
            if points:
                x, y, drawn = zip(*points)
                axes.plot(x, y, marker="o", color=_color(drawn[0]), label=policy)
                for point in points:
                    axes.annotate(point[2].system.name.partition("@")[2], point[:2], fontsize=7)
        axes.set(
            title=_title(group),
            xlabel="tokens drafted and not accepted, per committed token",
            ylabel="verifier calls per committed token",
        )
        axes.grid(alpha=0.3)
        axes.legend()
    return figure


def draw_oracle(result: Result) -> Figure:
    """Draw the oracle's verify lengths: of the sentence with the most steps, and means over all.

    As in Mamou et al., *Dynamic Speculation Lookahead Accelerates Speculative Decoding of Large
    Language Models*, 2024, figures 1 and 2. Steps of all sentences are put together by tenths of
    their sentences.
    """
    sentences = result.runs[0].sentences
    lengths = sentences["accepted_by_step"]
    chosen = max(range(len(lengths)), key=lambda i: len(lengths[i]))
    figure = new_figure((13, 5.6))
    left, right = figure.subplots(1, 2, sharey=True)
    left.plot(range(1, len(lengths[chosen]) + 1), lengths[chosen], "k*-", drawstyle="steps-mid")
    means, deviations = by_tenths(lengths)
    right.errorbar(range(5, 100, 10), means, deviations, fmt="k*-", capsize=3)
    label = "drafted tokens that will be accepted"
    left.set(title=f"line {sentences['line'][chosen]}", xlabel="step", ylabel=label)
    right.set(title="all: mean and standard deviation", xlabel="position in the sentence, %")
    figure.suptitle(f"{_title([result])}: the oracle, the bound of chains, not a real decoder")
    return figure


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


def _title(group: Sequence[Result]) -> str:
    place = group[0].place
    return f"{place.text.name}, batch {place.batch}, threads {place.threads}"


def new_figure(size: tuple[float, float]) -> Figure:
    """Return an empty figure of this size in inches."""
    # Only here: matplotlib is an extra. Without pyplot, which looks for a display.
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure in each of ``FORMATS``, whose names are appended to ``path``.

    Raises:
        InferenceError: it cannot be written.
    """
    import matplotlib

    # The same runs give the same bytes.
    with matplotlib.rc_context({"svg.hashsalt": "specdec"}):
        for kind in FORMATS:
            buffer = BytesIO()
            date = {"Date": None} if kind == "svg" else None
            figure.savefig(buffer, format=kind, dpi=130, metadata=date)
            write_whole(path.with_name(f"{path.name}.{kind}"), [buffer.getvalue()])
