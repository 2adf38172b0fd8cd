"""Reports say what a run was really computed by, and in."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from inference_runs import RunScript

from specdec_plugins.decoding.steps.drafter import DrafterStep
from specdec_plugins.engines import choice, openvino
from specdec_plugins.engines.openvino import OpenVinoEngine
from specdec_plugins.engines.step import Step

pytest_plugins = ["inference_runs"]
pytest.importorskip("openvino", reason="the extra [openvino] is not installed")


def test_a_precision_that_the_processor_has_not(
    run: RunScript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report says what was computed in."""
    monkeypatch.setattr(openvino, "has_bfloat16", lambda: False)
    stats = tmp_path / "stats.json"
    for flags in (["--bf16"], ["--drafter-precision", "bfloat16"]):
        assert run("--stats-json", str(stats), "--engine", "openvino", "--cpu", *flags) == 0
        assert json.loads(stats.read_text())["precision"] == "float32"


def test_engines_that_cannot_take_a_step(
    run: RunScript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report names what ran the models in their place."""
    monkeypatch.setattr(choice, "is_installed", lambda engine: True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    prepared = OpenVinoEngine.compiled
    stats = tmp_path / "stats.json"
    for cannot, name in (((Step,), "eager"), ((DrafterStep,), "openvino and eager")):

        def prepare(self: OpenVinoEngine, step: Step, cannot: Any = cannot) -> Any:
            if isinstance(step, cannot):
                raise RuntimeError("no such operation")
            return prepared(self, step)

        monkeypatch.setattr(OpenVinoEngine, "compiled", prepare)
        assert run("--stats-json", str(stats), "--engine", "auto", "--cpu") == 0
        report = json.loads(stats.read_text())
        assert report["engine"] == name
        assert report["engine_fallbacks"]
        for reason in report["engine_fallbacks"]:
            assert re.fullmatch(r"openvino cannot compile \w+ \(no such operation\)", reason)
