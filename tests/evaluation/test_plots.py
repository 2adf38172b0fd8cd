"""Both pictures are drawn, with everything on them and no label upon another."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest
from sweeps import make_columns, make_run

from specdec_plugins.evaluation import plots
from specdec_plugins.evaluation.labels import Label, place_labels
from specdec_plugins.evaluation.plots import STYLES, check_plotting, draw_pareto, draw_speed
from specdec_plugins.evaluation.runs import Run
from specdec_plugins.evaluation.summary import Group, summarize
from specdec_plugins.evaluation.systems import Choice, list_systems
from specdec_plugins.inference import Settings

Pictures = dict[Any, dict[str, bytes]]


@pytest.fixture(scope="module")
def _matplotlib() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib, of the extra [plot], is not here")


def make_runs() -> list[Run]:
    runs = [make_run("AR"), make_run("drafter")]
    for k in (1, 2, 4):
        rates = {"verification_rate": 1 / (1 + 0.8 * k), "verified_discard_rate": 0.2 * k}
        runs.append(make_run(f"constant k {k}", block_size=k, tokens_per_second=8.0 + k, **rates))
    for name in ("confidence", "acceptance-head"):
        for threshold in (0.25, 0.75):
            rates = {"verification_rate": 0.3 + threshold / 5, "threshold": threshold}
            runs.append(make_run(f"{name} {threshold} k 4", **rates))
    runs += [make_run("heuristic k 4"), make_run("cost-aware k 4"), make_run("oracle k 4")]
    for nodes in (8, 16):
        rates = {"verification_rate": 0.2, "verified_discard_rate": nodes / 5}
        runs.append(make_run(f"tree {nodes} k 4", tree_nodes=nodes, **rates))
    for name, kind in (("averages", "cost-aware, chains"), ("head", "cost-aware with a head")):
        runs.append(make_run(f"cost-aware {name} k 4", kind=kind, tree_nodes=None))
    # The curves of two k.
    runs += [make_run(f"oracle k {k}", block_size=k) for k in (2, 5)]
    return runs


def make_group(runs: list[Run]) -> Group:
    (group,) = summarize(runs, [])
    return group


@pytest.fixture(scope="module")
def pictures(_matplotlib: None) -> Pictures:
    group = make_group(make_runs())
    return {draw: draw(group) for draw in (draw_pareto, draw_speed)}


def texts(svg: bytes) -> list[str]:
    """Of a picture: matplotlib notes them beside their outlines."""
    parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))
    tree = ElementTree.fromstring(svg, parser=parser)
    return [(e.text or "").strip() for e in tree.iter() if callable(e.tag)]


def test_every_kind_has_a_style_of_its_own() -> None:
    base = Settings(data="d", path="d.pt", ar_path="v.pt")
    kinds = {system.kind for system in list_systems(base, Choice(), 4)}
    assert set(STYLES) == kinds - {"AR", "drafter"}
    looks = {(style.color, style.marker) for style in STYLES.values()}
    assert len(looks) == len(STYLES)
    # In the order in which they are drawn.
    assert list(STYLES)[-1] == "oracle"


@pytest.mark.parametrize("draw", [draw_pareto, draw_speed])
def test_pictures_show_every_policy(pictures: Pictures, draw: object) -> None:
    found = pictures[draw]
    assert set(found) == {"png", "svg"}
    assert found["png"].startswith(b"\x89PNG")
    assert len(found["png"]) > 20_000
    shown = "\n".join(texts(found["svg"]))
    for name in ("confidence, by threshold, k 3", "acceptance-head, by threshold, k 3"):
        assert name in shown
    for name in ("heuristic, k 3", "tree, by nodes, k 3", "cost-aware, k 3", "AR"):
        assert name in shown
    for k in (2, 3, 5):
        assert f"oracle (the bound of chains, not a real decoder), k {k}" in shown
    assert "cpu, eager, float32, 1 thread, batch 1, strict" in shown
    assert "drafter alone" not in shown
    assert "per committed token" in shown or "tokens per second" in shown
    # The oracle's black, and twice paler.
    for colour in (b"#000000", b"#737373", b"#b2b2b2"):
        assert b"stroke: " + colour in found["svg"], colour


def test_the_oracles_lengths() -> None:
    """By hand: a sentence of one step has it everywhere, one of two has each in a half."""
    mean, spread = plots.by_tenths([[4], [2, 0]])
    assert mean == pytest.approx([3.0] * 5 + [2.0] * 5)
    assert spread == pytest.approx([1.0] * 5 + [2.0] * 5)
    # A step that lies in two tenths counts in both by its share.
    mean, _ = plots.by_tenths([[0, 6, 0]])
    assert mean == pytest.approx([0, 0, 0, 4, 6, 6, 4, 0, 0, 0])


@pytest.mark.usefixtures("_matplotlib")
def test_the_oracle_is_drawn_where_it_is() -> None:
    columns = make_columns(1, 1, accepted_by_step=[[3, 0], [4, 0, 1]], output=["a", "b"])
    runs = [make_run("oracle k 4", block_size=4, by_sentence=columns)]
    runs += [make_run("constant k 2", block_size=2), make_run("AR")]
    shown = "\n".join(texts(plots.draw_oracle(make_group(runs))["svg"]))
    for name in ("line 2", "all 2 sentences", "k 4", "constant, the fastest: k 2"):
        assert name in shown
    assert "not a real decoder" in shown
    assert plots.draw_oracle(make_group(runs[1:])) == {}


def test_points_are_labelled(pictures: Pictures) -> None:
    shown = texts(pictures[draw_pareto]["svg"])
    for label in ("k 1", "k 2", "k 4", "0.25", "0.75", "8", "16"):
        assert shown.count(label) >= 2, label


def test_of_a_curve_the_fastest_is_a_line(pictures: Pictures) -> None:
    shown = texts(pictures[draw_speed]["svg"])
    assert "constant, the fastest: k 4" in shown
    assert "tree, by nodes, k 3, the fastest: 8 nodes" in shown


def test_the_same_runs_give_the_same_picture(pictures: Pictures) -> None:
    assert draw_speed(make_group(make_runs())) == pictures[draw_speed]


@pytest.mark.usefixtures("_matplotlib")
@pytest.mark.parametrize("draw", [draw_pareto, draw_speed])
def test_little_is_drawn_too(draw: Any) -> None:
    """Nothing but AR, as in a sweep that has just begun."""
    few, faster = ([make_run("AR", tokens_per_second=speed)] for speed in (8.0, 99.0))
    found = draw(make_group(few))
    assert found["png"].startswith(b"\x89PNG")
    assert (found == draw(make_group(faster))) == (draw is draw_pareto)


@pytest.mark.usefixtures("_matplotlib")
def test_labels_keep_apart() -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    points = [(0.5, 0.5), (0.505, 0.5), (0.5, 0.51), (0.9, 0.1), (0.1, 0.9)]
    axes.plot(*zip(*points))
    place_labels(figure, axes, [Label(x, y, f"k {i}", "b") for i, (x, y) in enumerate(points)])
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) == 5
    for i, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:i])
        assert not any(box.contains(*axes.transData.transform(point)) for point in points)


@pytest.mark.usefixtures("_matplotlib")
def test_a_label_keeps_off_a_curve() -> None:
    """Its usual place, above the point, is where the curve goes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot([0.5, 0.5], [0, 1])
    axes.set(xlim=(0, 1))
    place_labels(figure, axes, [Label(0.5, 0.5, "k 5", "b")], [[(0.5, 0.0), (0.5, 1.0)]])
    figure.draw_without_rendering()
    box = axes.texts[0].get_window_extent()
    line = [axes.transData.transform((0.5, i / 500)) for i in range(501)]
    assert not any(box.contains(*point) for point in line)


def test_without_matplotlib_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install matplotlib, or give --no-plots"):
        check_plotting()
