"""Both pictures are drawn, with everything on them and no label upon another."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from sweeps import make_run

from specdec_plugins.evaluation import plots
from specdec_plugins.evaluation.labels import Label, place_labels
from specdec_plugins.evaluation.plots import check_plotting, draw_pareto, draw_speed
from specdec_plugins.evaluation.runs import Run
from specdec_plugins.evaluation.summary import Group, summarize


@pytest.fixture
def _matplotlib() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib, of the extra [plot], is not here")


def make_runs() -> list[Run]:
    runs = [make_run("AR"), make_run("drafter")]
    for k in (1, 2, 4):
        rates = {"verification_rate": 1 / (1 + 0.8 * k), "verified_discard_rate": 0.2 * k}
        runs.append(make_run(f"constant k {k}", block_size=k, **rates))
    for name in ("confidence", "acceptance-head"):
        for threshold in (0.25, 0.75):
            rates = {"verification_rate": 0.3 + threshold / 5, "threshold": threshold}
            runs.append(make_run(f"{name} {threshold} k 4", **rates))
    runs += [make_run("heuristic k 4"), make_run("cost-aware k 4"), make_run("oracle k 4")]
    for nodes in (8, 16):
        rates = {"verification_rate": 0.2, "verified_discard_rate": nodes / 5}
        runs.append(make_run(f"tree {nodes} k 4", tree_nodes=nodes, **rates))
    runs.append(make_run("cost-aware averages k 4", tree_nodes=None))
    runs.append(make_run("cost-aware head k 4", asks_head=True, tree_nodes=None))
    return runs


def make_group(runs: list[Run] | None = None) -> Group:
    (group,) = summarize(runs or make_runs(), [])
    return group


def comments(svg: bytes) -> str:
    """The texts of a picture, which matplotlib notes beside their outlines."""
    parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))
    tree = ElementTree.fromstring(svg, parser=parser)
    return "\n".join(e.text or "" for e in tree.iter() if callable(e.tag))


@pytest.mark.usefixtures("_matplotlib")
@pytest.mark.parametrize("draw", [draw_pareto, draw_speed])
def test_pictures_show_every_policy(draw: object) -> None:
    pictures = draw(make_group())  # type: ignore[operator]
    assert set(pictures) == {"png", "svg"}
    assert pictures["png"].startswith(b"\x89PNG")
    assert len(pictures["png"]) > 20_000
    texts = comments(pictures["svg"])
    for policy in (
        "confidence, by threshold",
        "acceptance-head, by threshold",
        "heuristic",
        "tree",
    ):
        assert policy in texts
    for name in ("cost-aware, k 3", "cost-aware, chains", "cost-aware with a head", "AR"):
        assert name in texts
    assert "oracle (the bound of chains, not a real decoder)" in texts
    assert "cpu, float32, 1 thread, batch 1, strict" in texts
    assert "drafter alone" not in texts
    assert "per committed token" in texts or "tokens per second" in texts


@pytest.mark.usefixtures("_matplotlib")
def test_points_are_labelled() -> None:
    texts = comments(draw_pareto(make_group())["svg"]).split("\n")
    for label in ("k 1", "k 2", "k 4", "0.25", "0.75", "8", "16"):
        assert sum(text.strip() == label for text in texts) >= 2, label


@pytest.mark.usefixtures("_matplotlib")
def test_the_same_runs_give_the_same_picture() -> None:
    assert draw_speed(make_group()) == draw_speed(make_group())
    faster = [*make_runs(), make_run("AR", tokens_per_second=99.0)]
    assert draw_speed(make_group()) != draw_speed(make_group(faster))


@pytest.mark.usefixtures("_matplotlib")
def test_the_curves_of_two_k_can_be_told_apart() -> None:
    smaller = [make_run(f"oracle k {k}", block_size=k) for k in (2, 5)]
    for draw in (draw_pareto, draw_speed):
        svg = draw(make_group([*make_runs(), *smaller]))["svg"]
        texts = comments(svg)
        assert "k 2" in texts
        assert "k 5" in texts
        # The oracle's black, and twice paler.
        for colour in (b"#000000", b"#737373", b"#b2b2b2"):
            assert b"stroke: " + colour in svg, colour


@pytest.mark.usefixtures("_matplotlib")
def test_little_is_drawn_too() -> None:
    """Nothing but AR, as in a sweep that has just begun."""
    for draw in (draw_pareto, draw_speed):
        assert draw(make_group([make_run("AR")]))["png"].startswith(b"\x89PNG")


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
