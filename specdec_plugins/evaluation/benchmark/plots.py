"""A benchmark as a picture: milliseconds a sentence of every system, a panel a batch size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specdec_plugins.evaluation.benchmark.results import BatchResult, SystemResult
from specdec_plugins.evaluation.benchmark.systems import AR, CTRANSLATE2, FAIRSEQ
from specdec_plugins.evaluation.plots import new_figure, save_figure
from specdec_plugins.inference.report import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which the colour-blind can tell apart; in print they differ in lightness,
# and a bar's name is beside it anyhow.
COLORS = {
    FAIRSEQ: "#999999",
    CTRANSLATE2: "#E69F00",
    AR: "#56B4E9",
    "strict": "#0072B2",
    "relaxed": "#009E73",
}
HATCHES = ("", "////", "....", "xxxx", "----")
"""By the number of threads, from the fewest on; once more from the beginning where that does not
suffice."""


def draw_speed(results: Sequence[BatchResult], title: str) -> dict[str, bytes]:
    """Bars, a group a system, a bar a number of threads; lines reach from least to most.

    Returns:
        the picture by format.

    Raises:
        ImportError: matplotlib is not installed.
    """
    every = [system for result in results for system in result.systems]
    names = list(dict.fromkeys(system.system.name for system in every))
    threads = sorted({system.system.threads for system in every})
    rows = len(names) * len(threads)
    figure = new_figure((4 + 4.5 * len(results), 1.8 + 0.26 * rows))
    figure.suptitle(title)
    panels = figure.subplots(1, len(results), sharey=True, squeeze=False)[0]
    for axes, result in zip(panels, results):
        _draw_panel(axes, result, names, threads)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    keys = [_key(count, threads) for count in threads]
    figure.legend(handles=keys, loc="outside lower center", ncols=len(threads), frameon=False)
    return save_figure(figure)


def _draw_panel(
    axes: Axes, result: BatchResult, names: Sequence[str], threads: Sequence[int]
) -> None:
    height = 0.84 / len(threads)
    longest = max(system.milliseconds.high for system in result.systems)
    for system in result.systems:
        spread, count = system.milliseconds, system.system.threads
        shift = (threads.index(count) - (len(threads) - 1) / 2) * height
        place = names.index(system.system.name) + shift
        error = ([spread.median - spread.low], [spread.high - spread.median])
        style: dict[str, Any] = {
            "height": height,
            "xerr": error,
            "capsize": 2,
            "error_kw": {"linewidth": 0.8},
        }
        axes.barh(place, spread.median, **style, **_look(system, threads))
        text = f"{spread.median:.3g}"
        axes.text(spread.high + 0.015 * longest, place, text, va="center", fontsize=8)
    axes.set(
        title=f"batch {result.batch}",
        xlabel="milliseconds a sentence (less is better)",
        # Room for what is written beside the longest bar.
        xlim=(0, 1.15 * longest),
    )
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)


def _look(system: SystemResult, threads: Sequence[int]) -> dict[str, Any]:
    color = COLORS[system.system.family]
    hatch = HATCHES[threads.index(system.system.threads) % len(HATCHES)]
    return {"color": color, "hatch": hatch, "edgecolor": "black", "linewidth": 0.6}


def _key(count: int, threads: Sequence[int]) -> Any:
    """A number of threads in the legend."""
    from matplotlib.patches import Patch

    hatch = HATCHES[threads.index(count) % len(HATCHES)]
    label = counted(count, "thread")
    return Patch(facecolor="white", edgecolor="black", hatch=hatch, label=label)
