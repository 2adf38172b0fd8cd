"""Drafts that are texts, from settings and lines to translations."""

from __future__ import annotations

from pathlib import Path

import pytest
from inference_runs import SENTENCES, make_settings

from specdec_plugins.engines import choice
from specdec_plugins.inference import load_translator

pytest_plugins = ["inference_runs"]


def texts(world: Path, **settings: object) -> list[str]:
    return [
        line.text for line in load_translator(make_settings(world, **settings)).translate(SENTENCES)
    ]


@pytest.mark.parametrize("batch", [1, 3])
def test_each_kind_gives_the_verifiers_words(
    batch: int, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = texts(world, strategy="AR", batch=batch)
    assert texts(world, drafts="source", batch=batch) == expected
    translator = load_translator(make_settings(world, drafts="texts", batch=batch, path=None))
    results = list(translator.translate(SENTENCES, drafts=expected))
    assert [result.text for result in results] == expected
    assert translator.statistics.steps == sum(map(bool, expected))
    with pytest.raises(ValueError, match="shorter"):
        list(translator.translate(SENTENCES, drafts=expected[:1]))
    pytest.importorskip("openvino", reason="the extra [int8] is not installed")
    monkeypatch.setattr(choice, "is_installed", lambda engine: engine != "onnxruntime")
    monkeypatch.setattr("specdec_plugins.inference.loading.is_installed", choice.is_installed)
    options = {"engine": "auto", "path": None, "batch": batch}
    copy = load_translator(make_settings(world, **options))
    assert [result.text for result in copy.translate(SENTENCES)] == expected
    assert copy.precision == "float32, int8 drafts"


def test_a_copy_that_no_engine_can_make(world: Path, caplog: pytest.LogCaptureFixture) -> None:
    translator = load_translator(make_settings(world, engine="auto", path=None))
    assert translator.settings.controller.name == "none"
    assert "specdec-plugins[int8]" in caplog.text
    assert [line.text for line in translator.translate(SENTENCES)] == texts(world, strategy="AR")


def test_drafts_need_chains_and_settings(world: Path) -> None:
    translator = load_translator(make_settings(world))
    with pytest.raises(ValueError, match="drafts='texts'"):
        translator.translate(SENTENCES, drafts=SENTENCES)
