"""Plots are drawn of what there is."""

from __future__ import annotations

from pathlib import Path

import pytest
from experiments import make_experiment, make_run

from specdec_plugins.evaluation.plots import draw, save_figure
from specdec_plugins.evaluation.table import results


def test_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib, of the extra [plot], is not here")
    experiment = make_experiment("AR", "tree")
    plain = {"drafted_tokens": 0, "verified_tokens": 0, "accepted_tokens": 0}
    runs = [make_run("AR", **plain)]
    assert [name for name, _ in draw(results(experiment, runs))] == ["speed"]
    runs += [make_run("tree")]
    figures = dict(draw(results(experiment, runs)))
    assert list(figures) == ["speed", "pareto"]
    for name, figure in figures.items():
        save_figure(figure, tmp_path / name)
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert b"</svg>" in (tmp_path / f"{name}.svg").read_bytes()
