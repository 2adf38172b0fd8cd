"""Drafts that are texts, from settings and lines to translations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from inference_runs import SENTENCES, RunScript, lines_of, make_settings, one_error

from specdec_plugins.decoding.controllers.simple import Constant
from specdec_plugins.engines import choice
from specdec_plugins.inference import load_translator
from specdec_plugins.inference.loading import _with_text_controller

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
    before = translator.statistics.drafted_tokens
    results = list(translator.translate(SENTENCES, drafts=[""] * len(SENTENCES)))
    assert [result.text for result in results] == expected
    assert translator.statistics.drafted_tokens == before + len(SENTENCES), "only EOS"
    pytest.importorskip("onnxruntime", reason="the extra [int8] is not installed")
    monkeypatch.setattr(choice, "is_installed", lambda engine: True)
    monkeypatch.setattr("specdec_plugins.inference.loading.is_installed", choice.is_installed)
    for engine in ("auto", "eager"):
        copy = load_translator(make_settings(world, engine=engine, path=None, batch=batch))
        assert [result.text for result in copy.translate(SENTENCES)] == expected
        assert copy.precision == "float32, int8 drafts"
    int8 = load_translator(make_settings(world, engine="auto", path=None, precision="int8"))
    assert int8.settings.controller.name == "none", "a copy would take as long as the verifier"


def test_a_copy_that_no_engine_can_make(world: Path, caplog: pytest.LogCaptureFixture) -> None:
    translator = load_translator(make_settings(world, engine="auto", path=None))
    assert translator.settings.controller.name == "none"
    assert "specdec-plugins[int8]" in caplog.text
    assert [line.text for line in translator.translate(SENTENCES)] == texts(world, strategy="AR")


def test_copies_draft_in_small_batches(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, unless a controller is asked for."""
    monkeypatch.setattr("specdec_plugins.inference.loading.is_installed", lambda engine: True)
    settings = make_settings(world, path=None, batch=5)
    assert _with_text_controller(settings).controller.name == "none"
    for changes in ({"batch": 4}, {"device": "cuda"}, {"controller": Constant()}):
        assert _with_text_controller(replace(settings, **changes)).controller.name == "constant"


@pytest.mark.parametrize(
    ("drafts", "message"),
    [
        ("w1\n" * 8, "has no line 9"),
        ("w1\n" * 10, "has more lines than the input"),
        (b"w1\n\xff\n", "line 2 is not UTF-8"),
        (None, "No such file"),
    ],
)
def test_files_of_other_lines(
    drafts: str | bytes | None,
    message: str,
    run: RunScript,
    tmp_path: Path,
    greedy: list[str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    """What was written before is the verifier's; of what is no draft nothing is."""
    file = tmp_path / "drafts"
    if drafts is not None:
        file.write_bytes(drafts if isinstance(drafts, bytes) else drafts.encode())
    assert run("--drafts", str(file), "--engine", "eager") == 1
    assert message in one_error(capfd)
    out = tmp_path / "out.txt"
    written = lines_of(out) if out.exists() else []
    assert written == greedy[: len(written)]


def test_drafts_are_not_written_over(
    run: RunScript, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.txt"
    file.write_text("w1\n" * 9)
    assert run("--drafts", str(file)) == 1
    assert "is the same file as --drafts" in one_error(capfd)
    assert file.read_text() == "w1\n" * 9


def test_drafts_need_settings(world: Path) -> None:
    translator = load_translator(make_settings(world))
    with pytest.raises(ValueError, match="drafts='texts'"):
        translator.translate(SENTENCES, drafts=SENTENCES)
