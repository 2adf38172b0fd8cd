"""Every picture is drawn, with everything on it."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from experiments import PEERS, SYSTEMS, make_columns, make_group, make_groups, make_run

from specdec_plugins.decoding.controllers import POLICIES
from specdec_plugins.evaluation import plots
from specdec_plugins.evaluation.plots import (
    STYLES,
    check_plotting,
    draw_pareto,
    draw_speed,
    save_figure,
)
from specdec_plugins.evaluation.runs import Run

Pictures = dict[Any, dict[str, bytes]]


@pytest.fixture(scope="module")
def _matplotlib() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib, of the extra [plot], is not here")


def make_runs() -> list[Run]:
    """Of every controller, with its smaller k: constant k 4 is the fastest of its kind."""
    runs = []
    for name, system in SYSTEMS.items():
        k, nodes = system.settings.block_size or 0, system.tree_nodes or 0
        discards = {"verified_discard_rate": 0.2 * k + 0.1 * nodes}
        rate = 1 / (1 + 0.8 * k) + (system.threshold or 0) / 5
        runs.append(make_run(name, seconds=1 - 0.02 * k, verification_rate=rate, **discards))
    return runs


def saved(figure: Any) -> dict[str, bytes]:
    """A picture by format."""
    with TemporaryDirectory() as folder:
        save_figure(figure, Path(folder) / "a.b")
        return {
            path.name.removeprefix("a.b."): path.read_bytes() for path in Path(folder).iterdir()
        }


@pytest.fixture(scope="module")
def pictures(_matplotlib: None) -> Pictures:
    group = make_group(make_runs())
    return {draw: saved(draw(group)) for draw in (draw_pareto, draw_speed)}


def texts(svg: bytes) -> list[str]:
    """Of a picture: matplotlib notes them beside their outlines."""
    parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))
    tree = ElementTree.fromstring(svg, parser=parser)
    return [(e.text or "").strip() for e in tree.iter() if callable(e.tag)]


def test_every_policy_has_a_style_of_its_own() -> None:
    assert set(STYLES) == set(POLICIES) - {"none"}
    looks = {(style.color, style.marker) for style in (*STYLES.values(), plots.OTHER)}
    assert len(looks) == len(STYLES) + 1


@pytest.mark.parametrize("draw", [draw_pareto, draw_speed])
def test_pictures_show_every_policy(pictures: Pictures, draw: object) -> None:
    found = pictures[draw]
    assert set(found) == {"png", "svg"}
    assert found["png"].startswith(b"\x89PNG")
    assert len(found["png"]) > 20_000
    shown = "\n".join(texts(found["svg"]))
    for name in ("confidence, by threshold, k 4", "acceptance-head, by threshold, k 3"):
        assert name in shown
    for name in ("heuristic, k 4", "tree, by nodes, k 3"):
        assert name in shown
    for k in (2, 3, 4):
        assert f"oracle (the bound of chains, not a real decoder), k {k}" in shown
    assert "cpu, eager, float32, 1 thread, batch 1, strict" in shown
    assert "drafter alone" not in shown
    assert "per committed token" in shown or "tokens per second" in shown
    # The largest k in full colour, and twice paler.
    for opacity in (b"0.55", b"0.3025"):
        assert b"stroke-opacity: " + opacity in found["svg"], opacity


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
    runs = [make_run("oracle k 4", by_sentence=columns)]
    runs += [make_run("constant k 2"), make_run("AR")]
    shown = "\n".join(texts(saved(plots.draw_oracle(make_group(runs)))["svg"]))
    for name in ("line 2", "all 2 sentences", "k 4", "constant, the fastest: k 2"):
        assert name in shown
    assert "not a real decoder" in shown
    assert plots.draw_oracle(make_group(runs[1:])) is None


def test_points_are_labelled(pictures: Pictures) -> None:
    shown = texts(pictures[draw_pareto]["svg"])
    for label in ("k 1", "k 2", "k 4", "0.25", "0.75", "8", "16"):
        assert shown.count(label) >= 2, label


def test_of_a_curve_the_fastest_is_a_line(pictures: Pictures) -> None:
    shown = texts(pictures[draw_speed]["svg"])
    assert "constant, the fastest: k 4" in shown
    assert "tree, by nodes, k 3, the fastest: 8 nodes" in shown


def test_the_same_runs_give_the_same_picture(pictures: Pictures) -> None:
    assert saved(draw_speed(make_group(make_runs()))) == pictures[draw_speed]


@pytest.mark.usefixtures("_matplotlib")
@pytest.mark.parametrize("draw", [draw_pareto, draw_speed])
def test_little_is_drawn_too(draw: Any) -> None:
    """Nothing but AR, as in a sweep that has just begun."""
    few, faster = ([make_run("AR", seconds=value)] for value in (8.0, 1.0))
    found = saved(draw(make_group(few)))
    assert found["png"].startswith(b"\x89PNG")
    assert (found == saved(draw(make_group(faster)))) == (draw is draw_pareto)


@pytest.mark.usefixtures("_matplotlib")
def test_bars() -> None:
    runs = [make_run(one, batch=n, seconds=1.0 + i) for n in (1, 8) for i, one in enumerate(PEERS)]
    pictures = saved(plots.draw_bars(make_groups(runs, PEERS), "a processor"))
    assert set(pictures) == {"png", "svg"}
    shown = texts(pictures["svg"])
    for text in ("a processor; 2 sentences, one round", "cpu, batch 1, strict"):
        assert text in shown
    assert {"cpu, batch 8, strict", "strict tree bfloat16, 2 threads"} <= set(shown)
    one = [run for run in runs if run.system.endswith("1 thread")]
    shown = texts(saved(plots.draw_bars(make_groups(one, PEERS), ""))["svg"])
    assert "strict tree bfloat16" in shown


def test_without_matplotlib_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install matplotlib, or give --no-plots"):
        check_plotting()
