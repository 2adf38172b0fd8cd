"""Reports say what a run was really computed by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from inference_runs import RunScript

from specdec_plugins.decoding.steps.drafter import DrafterStep
from specdec_plugins.engines import choice
from specdec_plugins.engines.step import Step

pytest_plugins = ["inference_runs"]
onnxruntime = pytest.importorskip(
    "specdec_plugins.engines.onnxruntime", reason="the extra [int8] is not installed"
)


@pytest.mark.parametrize(
    ("cannot", "engine"), [(Step, "eager"), (DrafterStep, "onnxruntime and eager")]
)
def test_engines_that_cannot_take_a_step(
    cannot: type[Step],
    engine: str,
    run: RunScript,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The report names what ran the models in their place."""
    prepared, stats = onnxruntime.OnnxRuntimeEngine.load, tmp_path / "stats.json"

    def prepare(self: Any, step: Step) -> Any:
        if isinstance(step, cannot):
            raise RuntimeError("no such operation")
        return prepared(self, step)

    monkeypatch.setattr(choice, "is_installed", lambda engine: True)
    monkeypatch.setattr(onnxruntime.OnnxRuntimeEngine, "load", prepare)
    assert run("--stats-json", str(stats), "--engine", "auto", "--cpu") == 0
    report = json.loads(stats.read_text())
    assert report["engine"] == engine
    assert all("(no such operation)" in reason for reason in report["engine_fallbacks"])
    assert report["engine_fallbacks"]
