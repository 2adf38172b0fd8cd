"""Pictures of a group: verified against discarded, speed by threshold, what the oracle verifies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from specdec_plugins.decoding.controllers import POLICIES
from specdec_plugins.evaluation.labels import Label, place_labels
from specdec_plugins.evaluation.summary import Group, SystemSummary, is_real

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Style(NamedTuple):
    """How a policy is drawn."""

    color: str
    """Those of Okabe and Ito (2008) can be told apart by the colour-blind."""
    marker: str
    size: int = 6


STYLES = {
    "constant": Style("#0072B2", "o"),
    "heuristic": Style("#CC79A7", "D", 8),
    "confidence": Style("#009E73", "s"),
    "acceptance-head": Style("#D55E00", "^"),
    "tree": Style("#56B4E9", "v"),
    "cost-aware": Style("#E69F00", "P", 10),
    "oracle": Style("black", "*", 15),
}
OTHER = Style("#777777", "h", 8)
"""Of policies that are not among them."""
UNREAL = "the bound of chains, not a real decoder"
FORMATS = ("png", "svg")
PANELS = (
    ("verified_discard_rate", "slots that were verified"),
    ("discard_rate", "all slots that were drafted"),
)


def check_plotting() -> None:
    """
    Raises:
        ValueError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise ValueError(
            "the plots need matplotlib: pip install matplotlib, or give --no-plots (the same "
            "command without it draws them later)"
        )


def draw_pareto(group: Group) -> dict[str, bytes]:
    """Verification rate against discard rate: constant k as a curve, thresholds as curves.

    Returns:
        the picture by format.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure = new_figure((13, 6.2))
    figure.suptitle(f"{_title(group)}\nAR: verification rate 1, discard rate 0 (not shown)")
    for axes, (rate, slots) in zip(figure.subplots(1, 2, sharey=True), PANELS):
        labels: list[Label] = []
        curves = []
        for name, systems in _curves(group):
            style = _style(systems[0], group)
            points = [(float(getattr(s, rate)), s.verification_rate) for s in systems]
            line = "-" if len(points) > 1 else ""
            axes.plot(*zip(*points), label=name, linestyle=line, **style)
            curves.append(points)
            texts = [_point(system) for system in systems]
            labels += [Label(*p, t, style["color"]) for p, t in zip(points, texts)]
        axes.set(
            xlabel=f"discard rate: {slots} but not\naccepted, per committed token",
            title=f"of {slots}",
            xmargin=0.08,
            ymargin=0.08,
        )
        axes.grid(alpha=0.3)
        place_labels(figure, axes, labels, curves)
    figure.axes[0].set_ylabel("verification rate: verifier calls per committed token")
    _legend(figure, columns=3)
    return save_figure(figure)


def draw_speed(group: Group) -> dict[str, bytes]:
    """Tokens a second by threshold; systems without one, and the best constant k, as lines.

    Bars reach from the slowest round or seed to the fastest.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure = new_figure((9, 6.2))
    figure.suptitle(_title(group))
    axes = figure.subplots()
    for name, systems in _curves(group):
        style = _style(systems[0], group)
        if systems[0].first.threshold is not None:
            spreads = [system.tokens_per_second for system in systems]
            middles = [spread.middle(group.sampled) for spread in spreads]
            low = [middle - spread.low for middle, spread in zip(middles, spreads)]
            high = [spread.high - middle for middle, spread in zip(middles, spreads)]
            places = [t for t in (system.first.threshold for system in systems) if t is not None]
            axes.errorbar(places, middles, (low, high), label=name, capsize=3, **style)
            continue
        best = max(systems, key=lambda system: system.tokens_per_second.median)
        label = name
        if len(systems) > 1 and _point(best):
            unit = " nodes" if _by_nodes(best) else ""
            label = f"{name.removesuffix(', by k')}, the fastest: {_point(best)}{unit}"
        line = {**style, "marker": "", "linestyle": "--" if is_real(best.policy) else ":"}
        axes.axhline(best.tokens_per_second.middle(group.sampled), label=label, **line)
    if group.ar is not None:
        speed = group.ar.tokens_per_second.middle(group.sampled)
        axes.axhline(speed, label="AR", color="0.5", linewidth=2)
    axes.set(
        xlabel="threshold: acceptance-head, of the probability of a rejection;\n"
        "confidence, of the drafted token's probability",
        ylabel="committed tokens per second of decoding",
        xlim=(-0.02, 1.02),
    )
    axes.grid(alpha=0.3)
    _legend(figure, columns=2)
    return save_figure(figure)


def draw_oracle(group: Group) -> dict[str, bytes]:
    """The oracle's verify length, step by step: of one sentence, and the mean over all of them.

    As Mamou et al., *Dynamic Speculation Lookahead Accelerates Speculative Decoding of Large
    Language Models*, 2024, figures 1 and 2, show that no constant length fits. The sentence is the
    one with the most steps; to be put together, those of all are told by their place among their
    sentence's steps, in tenths. Without an oracle there is no picture.

    Raises:
        ImportError: matplotlib is not installed.
    """
    told = ((system, system.first.by_sentence.accepted_by_step) for system in group.of("oracle"))
    found = [(system, lengths) for system, lengths in told if lengths]
    if not found:
        return {}
    figure = new_figure((13, 5.6))
    figure.suptitle(f"{_title(group)}\nThe oracle: {UNREAL}")
    one, mean = figure.subplots(1, 2, sharey=True)
    run, longest = found[0][0].first, found[0][1]
    chosen = max(range(len(longest)), key=lambda i: len(longest[i]))
    for system, lengths in found:
        style = {
            "color": _style(system, group)["color"],
            "label": f"oracle, k {system.first.block_size}",
        }
        steps = lengths[chosen]
        one.plot(range(1, len(steps) + 1), steps, marker="*", drawstyle="steps-mid", **style)
        middles, spreads = by_tenths(lengths)
        places = [5 + 10 * tenth for tenth in range(len(middles))]
        mean.errorbar(places, middles, spreads, marker="*", capsize=3, **style)
    constants = group.of("constant")
    if constants:
        best = max(constants, key=lambda system: system.tokens_per_second.median)
        k = best.first.block_size or 0
        for axes in (one, mean):
            label = f"constant, the fastest: k {k}"
            axes.axhline(k, label=label, color=STYLES["constant"].color, linestyle="--")
    line = run.by_sentence.line[chosen]
    one.set(title=f"line {line}", xlabel="step", ylabel="drafted tokens that will be accepted")
    name = f"all {run.sentences} sentences: mean and standard deviation"
    mean.set(title=name, xlabel="place among the steps of a sentence, %", xlim=(0, 100))
    for axes in (one, mean):
        axes.grid(alpha=0.3)
    _legend(figure, columns=3)
    return save_figure(figure)


def by_tenths(sentences: Sequence[Sequence[int]]) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of what steps have, by tenths of their sentences.

    A step of a sentence of n stretches over an n-th of it: each tenth that it shares in counts it
    by its share.
    """
    weights, sums, squares = np.zeros((3, 10))
    for steps in sentences:
        edges = np.linspace(0, 10, len(steps) + 1)
        for value, begin, end in zip(steps, edges, edges[1:]):
            share = (np.minimum(np.arange(1, 11), end) - np.maximum(np.arange(10), begin)).clip(0)
            weights += share
            sums += share * value
            squares += share * value**2
    mean = sums / weights
    spread = np.sqrt((squares / weights - mean**2).clip(0))
    return mean.tolist(), spread.tolist()


def _curves(group: Group) -> Iterator[tuple[str, list[SystemSummary]]]:
    """Systems that belong together, under the name of their curve; the oracle last."""
    curves: dict[tuple[str, int | None], list[SystemSummary]] = {}
    for kind in POLICIES:
        for system in group.decoders():
            if system.first.kind == kind:
                k = None if kind == "constant" else system.first.block_size
                curves.setdefault((kind, k), []).append(system)
    for (kind, k), systems in curves.items():
        systems.sort(
            key=lambda s: (s.first.threshold or 0, s.first.tree_nodes or 0, s.first.block_size or 0)
        )
        first = systems[0].first
        name = kind if is_real(first.policy) else f"{kind} ({UNREAL})"
        if first.threshold is not None:
            name = f"{name}, by threshold"
        elif _by_nodes(systems[0]):
            name = f"{name}, by nodes"
        yield f"{name}, by k" if k is None else f"{name}, k {k}", systems


def _point(system: SystemSummary) -> str:
    """What is written at a point: the threshold, nodes or k; nothing where the legend says all."""
    if system.first.threshold is not None:
        return f"{system.first.threshold:g}"
    if system.policy == "constant":
        return f"k {system.first.block_size}"
    return str(system.first.tree_nodes) if _by_nodes(system) else ""


def _by_nodes(system: SystemSummary) -> bool:
    """Whether several numbers of nodes are compared; what chooses by itself has as many as may be,
    and no curve."""
    return system.first.tree_nodes is not None and not POLICIES[system.policy].unswept


def _style(system: SystemSummary, group: Group) -> dict[str, Any]:
    """That of its kind; the largest k in full colour, smaller ones paler."""
    kind = system.first.kind
    style = STYLES.get(kind, OTHER)
    face = {} if is_real(system.policy) else {"markerfacecolor": "none"}
    sizes = {s.first.block_size or 0 for s in group.systems if s.first.kind == kind}
    larger = sum(k > (system.first.block_size or 0) for k in sizes) if kind != "constant" else 0
    pale = _mixed_with_white(style.color, 0.55**larger)
    return {
        "color": pale,
        "marker": style.marker,
        "markersize": style.size,
        "linewidth": 1.5,
        **face,
    }


def _mixed_with_white(color: str, share: float) -> tuple[float, ...]:
    """As red, green and blue from 0 to 1."""
    from matplotlib.colors import to_rgb

    return tuple(1 - share * (1 - part) for part in to_rgb(color))


def _title(group: Group) -> str:
    rounds = max(len(system.runs) for system in group.systems)
    over = f"means of {rounds} seeds" if group.sampled else f"medians of {rounds} rounds"
    return f"{group.conditions}; {group.first.sentences} sentences, {over}"


def new_figure(size: tuple[float, float]) -> Figure:
    """An empty picture, of inches."""
    # Only here: matplotlib is an extra. Without pyplot, since that looks for a display.
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained")


def _legend(figure: Figure, columns: int) -> None:
    """Below the picture, where it hides nothing."""
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False)


def save_figure(figure: Figure) -> dict[str, bytes]:
    """The picture by format."""
    import matplotlib

    pictures: dict[str, bytes] = {}
    # The same runs give the same bytes.
    with matplotlib.rc_context({"svg.hashsalt": "specdec"}):
        for kind in FORMATS:
            buffer = BytesIO()
            date = {"Date": None} if kind == "svg" else None
            figure.savefig(buffer, format=kind, dpi=130, metadata=date)
            pictures[kind] = buffer.getvalue()
    return pictures
