"""Reports say what a run was really computed by, and in."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from inference_runs import RunScript

from specdec_plugins.decoding.steps.drafter import DrafterStep
from specdec_plugins.engines import choice
from specdec_plugins.engines.onnxruntime import OnnxRuntimeEngine
from specdec_plugins.engines.step import Step

pytest_plugins = ["inference_runs"]
pytest.importorskip("onnxruntime", reason="the extra [int8] is not installed")


def test_engines_that_cannot_take_a_step(
    run: RunScript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report names what ran the models in their place."""
    monkeypatch.setattr(choice, "is_installed", lambda engine: True)
    prepared = OnnxRuntimeEngine.load
    stats = tmp_path / "stats.json"
    for cannot, name in (((Step,), "eager"), ((DrafterStep,), "onnxruntime and eager")):

        def prepare(self: OnnxRuntimeEngine, step: Step, cannot: Any = cannot) -> Any:
            if isinstance(step, cannot):
                raise RuntimeError("no such operation")
            return prepared(self, step)

        monkeypatch.setattr(OnnxRuntimeEngine, "load", prepare)
        assert run("--stats-json", str(stats), "--engine", "auto", "--cpu") == 0
        report = json.loads(stats.read_text())
        assert report["engine"] == name
        assert report["engine_fallbacks"]
        for reason in report["engine_fallbacks"]:
            assert re.fullmatch(r"onnxruntime cannot compile \w+ \(no such operation\)", reason)
