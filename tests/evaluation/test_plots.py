"""Plots are drawn of what there is."""

from __future__ import annotations

from pathlib import Path

import pytest
from experiments import make_experiment, make_run

from specdec_plugins.evaluation.plots import by_tenths, draw, save_figure
from specdec_plugins.evaluation.table import results


def test_steps_by_tenths() -> None:
    mean, deviation = by_tenths([[4], [2, 0]])
    assert mean == pytest.approx([3.0] * 5 + [2.0] * 5)
    assert deviation == pytest.approx([1.0] * 5 + [2.0] * 5)
    # A step that lies in two tenths counts in both by its share.
    mean, _ = by_tenths([[0, 6, 0]])
    assert mean == pytest.approx([0, 0, 0, 4, 6, 6, 4, 0, 0, 0])


def test_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib, of the extra [plot], is not here")
    experiment = make_experiment("AR", "tree", "oracle")
    plain = {"drafted_tokens": 0, "verified_tokens": 0, "accepted_tokens": 0}
    runs = [make_run("AR", **plain)]
    assert [name for name, _ in draw(results(experiment, runs))] == ["speed"]
    told = make_run("oracle").sentences | {"accepted_by_step": [[3, 0], [4, 0, 1]]}
    runs += [make_run("tree"), make_run("oracle", sentences=told)]
    figures = dict(draw(results(experiment, runs)))
    assert list(figures) == ["speed", "pareto", "oracle"]
    for name, figure in figures.items():
        save_figure(figure, tmp_path / name)
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert b"</svg>" in (tmp_path / f"{name}.svg").read_bytes()
