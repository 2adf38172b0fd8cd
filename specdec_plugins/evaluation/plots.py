"""Pictures of a group: verified against discarded, speed by threshold, what the oracle verifies.

And of all groups: the time of a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specdec_plugins.evaluation.summary import Group, Spread, SystemSummary
from specdec_plugins.evaluation.systems import AR, CTRANSLATE2, FAIRSEQ
from specdec_plugins.files.errors import counted
from specdec_plugins.files.output import JsonObject, write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Style:
    """How a policy is drawn."""

    color: str
    """A colour of Okabe and Ito (2008), which the colour-blind can tell apart."""
    marker: str
    size: int = 6


STYLES = {
    "constant": Style("#0072B2", "o"),
    "heuristic": Style("#CC79A7", "D", 8),
    "confidence": Style("#009E73", "s"),
    "acceptance-head": Style("#D55E00", "^"),
    "tree": Style("#56B4E9", "v"),
    "oracle": Style("black", "*", 15),
}
"""The styles of policies, in the order in which they are drawn; any other comes after them."""
OTHER = Style("#777777", "h", 8)
BARS = {FAIRSEQ: "#999999", CTRANSLATE2: "#E69F00", AR: "#56B4E9", "strict": "#0072B2"}
"""The colours of what has no drafts, and of acceptance rules; any other rule is green. In print
they differ in lightness."""
UNREAL = "the bound of chains, not a real decoder"
FORMATS = ("png", "svg")
PANELS = (
    ("verified_discard_rate", "slots that were verified"),
    ("discard_rate", "all slots that were drafted"),
)


def check_plotting(
    instead: str = "or give --no-plots (the same command without it draws them later)",
) -> None:
    """See to it that matplotlib, which is an extra, can be had.

    Raises:
        ValueError: it is not installed; says what to do ``instead``.
    """
    if find_spec("matplotlib") is None:
        raise ValueError(f"the plots need matplotlib: pip install matplotlib, {instead}")


def draw_pareto(group: Group) -> Figure:
    """Verification rate against discard rate: constant k as a curve, thresholds as curves.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure = new_figure((13, 6.2))
    figure.suptitle(f"{_title(group)}\nAR: verification rate 1, discard rate 0 (not shown)")
    for axes, (rate, slots) in zip(figure.subplots(1, 2, sharey=True), PANELS):
        for name, systems in _curves(group):
            style = _style(systems[0], group)
            points = [
                (s.middle(rate) or 0.0, s.middle("verification_rate") or 0.0) for s in systems
            ]
            line = "-" if len(points) > 1 else ""
            axes.plot(*zip(*points), label=name, linestyle=line, **style)
            for point, system in zip(points, systems):
                text, beside = _point(system), {"xytext": (5, 4), "textcoords": "offset points"}
                axes.annotate(text, point, **beside, fontsize=8, color=style["color"])
        axes.set(
            xlabel=f"discard rate: {slots} but not\naccepted, per committed token",
            title=f"of {slots}",
            xmargin=0.08,
            ymargin=0.08,
        )
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("verification rate: verifier calls per committed token")
    _legend(figure, columns=3)
    return figure


def draw_speed(group: Group) -> Figure:
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
        if systems[0].system.threshold is not None:
            spreads = [_tokens(system) for system in systems]
            middles = [spread.middle(group.sampled) for spread in spreads]
            low = [middle - spread.low for middle, spread in zip(middles, spreads)]
            high = [spread.high - middle for middle, spread in zip(middles, spreads)]
            places = [system.system.threshold or 0.0 for system in systems]
            axes.errorbar(places, middles, (low, high), label=name, capsize=3, **style)
            continue
        best = max(systems, key=lambda system: _tokens(system).median)
        label = name
        if len(systems) > 1 and _point(best):
            unit = " nodes" if best.system.tree_nodes is not None else ""
            label = f"{name.removesuffix(', by k')}, the fastest: {_point(best)}{unit}"
        line = {**style, "marker": "", "linestyle": "--" if best.system.real else ":"}
        axes.axhline(_tokens(best).middle(group.sampled), label=label, **line)
    for ar in group.of(AR)[:1]:
        speed = _tokens(ar).middle(group.sampled)
        axes.axhline(speed, label="AR", color="0.5", linewidth=2)
    axes.set(
        xlabel="threshold: acceptance-head, of the probability of a rejection;\n"
        "confidence, of the drafted token's probability",
        ylabel="committed tokens per second of decoding",
        xlim=(-0.02, 1.02),
    )
    axes.grid(alpha=0.3)
    _legend(figure, columns=2)
    return figure


def _tokens(system: SystemSummary) -> Spread:
    """Tokens a second, which all of ours count."""
    found = system.spread("tokens_per_second")
    assert found is not None
    return found


def draw_oracle(group: Group) -> Figure | None:
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
        return None
    figure = new_figure((13, 5.6))
    figure.suptitle(f"{_title(group)}\nThe oracle: {UNREAL}")
    one, mean = figure.subplots(1, 2, sharey=True)
    run, longest = found[0][0].first, found[0][1]
    chosen = max(range(len(longest)), key=lambda i: len(longest[i]))
    for system, lengths in found:
        style = {
            "color": _style(system, group)["color"],
            "label": f"oracle, k {system.block_size}",
        }
        steps = lengths[chosen]
        one.plot(range(1, len(steps) + 1), steps, marker="*", drawstyle="steps-mid", **style)
        middles, spreads = by_tenths(lengths)
        places = [5 + 10 * tenth for tenth in range(len(middles))]
        mean.errorbar(places, middles, spreads, marker="*", capsize=3, **style)
    constants = group.of("constant")
    if constants:
        best = min(constants, key=SystemSummary.time)
        k = best.block_size or 0
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
    return figure


PICTURES = {"pareto": draw_pareto, "speed": draw_speed, "oracle": draw_oracle}
"""What draws the pictures of a group, by their names; None is no picture."""


def by_tenths(sentences: Sequence[Sequence[int]]) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of what steps have, by tenths of their sentences.

    A step of a sentence of n stretches over an n-th of it: each tenth that it shares in counts it
    by its share.
    """
    tenths = np.arange(10)[:, None]
    edges = [np.linspace(0, 10, len(steps) + 1) for steps in sentences]
    shares = np.concatenate([np.diff(np.clip(edge - tenths, 0, 1)) for edge in edges], axis=1)
    values, weights = np.concatenate(sentences), shares.sum(1)
    mean = shares @ values / weights
    spread = np.sqrt((shares @ values**2 / weights - mean**2).clip(0))
    return mean.tolist(), spread.tolist()


def _curves(group: Group) -> Iterator[tuple[str, list[SystemSummary]]]:
    """Systems that belong together, under the name of their curve; what is not real comes last."""
    order = list(STYLES)
    curves: dict[tuple[str, int | None], list[SystemSummary]] = {}
    for one in group.systems:
        policy = one.system.policy
        if one.system.options is not None:
            k = None if policy == "constant" else one.block_size
            curves.setdefault((policy, k), []).append(one)

    def turn(key: tuple[str, int | None]) -> tuple[bool, int]:
        policy = key[0]
        place = order.index(policy) if policy in order else len(order)
        return not curves[key][0].system.real, place

    for policy, k in sorted(curves, key=turn):
        systems = sorted(
            curves[policy, k],
            key=lambda s: (s.system.threshold or 0, s.system.tree_nodes or 0, s.block_size or 0),
        )
        first = systems[0].system
        name = policy if first.real else f"{policy} ({UNREAL})"
        if first.threshold is not None:
            name = f"{name}, by threshold"
        elif first.tree_nodes is not None:
            name = f"{name}, by nodes"
        yield f"{name}, by k" if k is None else f"{name}, k {k}", systems


def _point(one: SystemSummary) -> str:
    """What is written at a point: the threshold, nodes or k; nothing where the legend says all."""
    system = one.system
    if system.threshold is not None:
        return f"{system.threshold:g}"
    if system.policy == "constant":
        return f"k {one.block_size}"
    return "" if system.tree_nodes is None else str(system.tree_nodes)


def _style(one: SystemSummary, group: Group) -> JsonObject:
    """The style of its policy; the largest k in full colour, smaller ones paler."""
    policy, real = one.system.policy, one.system.real
    style = STYLES.get(policy, OTHER)
    sizes = {other.block_size or 0 for other in group.of(policy)}
    larger = sum(k > (one.block_size or 0) for k in sizes) if policy != "constant" else 0
    return {
        "color": style.color,
        "alpha": 0.55**larger,
        "marker": style.marker,
        "markersize": style.size,
        "linewidth": 1.5,
        **({} if real else {"markerfacecolor": "none"}),
    }


def _title(group: Group) -> str:
    return f"{group.conditions}; {_over(group)}"


def _over(group: Group) -> str:
    """The number of sentences and of rounds, in words."""
    rounds = max(len(one.runs) for one in group.systems)
    how = f"means of {counted(rounds, 'seed')}"
    if not group.sampled:
        how = f"medians of {counted(rounds, 'round')}" if rounds > 1 else "one round"
    return f"{counted(group.first.sentences, 'sentence')}, {how}"


def draw_bars(groups: Sequence[Group], machine: str) -> Figure:
    """Milliseconds a sentence of every system: a panel a group, a bar a system; lines reach from
    least to most.

    Raises:
        ImportError: matplotlib is not installed.
    """
    names = list(dict.fromkeys(group.called(one) for group in groups for one in group.systems))
    figure = new_figure((4 + 4.5 * len(groups), 1.4 + 0.26 * len(names)))
    figure.suptitle(f"{machine}; {_over(groups[0])}")
    panels = figure.subplots(1, len(groups), sharey=True, squeeze=False)[0]
    for axes, group in zip(panels, groups):
        _draw_panel(axes, group, names)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    return figure


def _draw_panel(axes: Axes, group: Group, names: Sequence[str]) -> None:
    spreads = [one.spread("milliseconds_a_sentence") for one in group.systems]
    longest = max(spread.high for spread in spreads if spread)
    for one, spread in zip(group.systems, spreads):
        assert spread is not None
        system, place = one.system, names.index(group.called(one))
        axes.barh(
            place,
            spread.median,
            xerr=([spread.median - spread.low], [spread.high - spread.median]),
            capsize=2,
            error_kw={"linewidth": 0.8},
            color=BARS.get(system.rule.name if system.rule else system.policy, "#009E73"),
            edgecolor="black",
            linewidth=0.6,
        )
        text = f"{spread.median:.3g}"
        axes.text(spread.high + 0.015 * longest, place, text, va="center", fontsize=8)
    axes.set(
        title=group.conditions,
        xlabel="milliseconds a sentence (less is better)",
        # Room for what is written beside the longest bar.
        xlim=(0, 1.15 * longest),
    )
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)


def new_figure(size: tuple[float, float]) -> Figure:
    """An empty picture, of inches."""
    # Only here: matplotlib is an extra. Without pyplot, since that looks for a display.
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained")


def _legend(figure: Figure, columns: int) -> None:
    """Below the picture, where it hides nothing."""
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a picture in each of ``FORMATS``, whose names are put behind that of ``path``.

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
