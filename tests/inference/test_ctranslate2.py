"""AR by CTranslate2: our own loop's output, or our own loop."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

import pytest
from conftest import make_dictionary, make_verifier, vary_output
from drafters import save_checkpoint

from specdec_plugins.decoding.acceptance import choose_rule
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.inference import Settings, Translator, ctranslate2, load_translator
from specdec_plugins.inference.report import format_report, full_report

pytest.importorskip("ctranslate2", reason="the extra [ctranslate2] is not installed")

TEXTS = ["w3 w4 w5 w6", " ", "w7", "w1 unknown w3 </s> w5 w6 w7", "w11 w12 w13", "w2"]
LIMITS = GenerationLimits(max_len_a=1.5, max_len_b=3, min_len=3)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a verifier that prefers the padding symbol."""
    for language in ("en", "de"):
        make_dictionary().save(str(tmp_path / f"dict.{language}.txt"))
    verifier = vary_output(make_verifier(seed=3))
    weight = verifier.decoder.output_projection.weight.data
    weight[1] = 2 * weight[7]
    save_checkpoint(tmp_path / "verifier.pt", verifier, source_lang="en", target_lang="de")
    return tmp_path


def load(folder: Path, backend: str = "ctranslate2", **given: Any) -> Translator:
    given = {"strategy": "AR", "limits": LIMITS, "ar_backend": backend, **given}
    return load_translator(Settings(str(folder), str(folder / "verifier.pt"), **given))


def translations(translator: Translator) -> list[tuple[str, int]]:
    return [(result.text, len(result.tokens)) for result in translator.translate(TEXTS)]


@pytest.mark.parametrize("batch", [1, 4])
def test_it_says_what_our_loop_says(folder: Path, batch: int) -> None:
    """With limits by the row, unknown words, and a padding symbol that is preferred."""
    ours, theirs = load(folder, "ours", batch=batch), load(folder, batch=batch)
    assert translations(theirs) == translations(ours)
    assert (ours.engine, theirs.engine) == ("eager", "ctranslate2")
    counts = ("sentences", "committed_tokens", "steps", "verifier_calls")
    found, expected = full_report(theirs), full_report(ours)
    assert [found[name] for name in counts] == [expected[name] for name in counts]
    assert found["settings"]["ar_backend"] == "ctranslate2"
    assert found["versions"]["ctranslate2"]
    assert found["latency_ms"]["p50"] > 0


def test_what_it_makes_something_else_of_goes_by_our_loop(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = translations(load(folder, "ours"))
    convert = ctranslate2.convert_verifier

    def convert_another(verifier: Any, *rest: Any) -> None:
        other = make_verifier(seed=4).float()
        convert(other.requires_grad_(False), *rest)

    monkeypatch.setattr(ctranslate2, "convert_verifier", convert_another)
    translator = load(folder)
    assert translations(translator) == expected
    assert translator.engine == "eager"
    assert "makes something else" in format_report(full_report(translator))


def test_what_there_is_no_room_for_goes_by_our_loop(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "gone"))
    with caplog.at_level(logging.WARNING):
        translator = load(folder)
    assert translator.engine == "eager"
    assert "our own loop decodes" in caplog.text


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"precision": "float64"}, "precision float64"),
        ({"trace": True}, "a trace"),
        ({"limits": GenerationLimits(unkpen=1.0)}, "a penalty for unknown words"),
        ({"limits": GenerationLimits(repetition_penalty=1.5)}, "a repetition penalty"),
        ({"rule": choose_rule({"sampling": True})}, "sampling"),
    ],
)
def test_what_it_cannot_do_goes_by_our_loop(
    folder: Path, given: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        translator = load(folder, **given)
    assert f"it cannot do {reason}; our own loop decodes" in caplog.text
    assert translator.engine == "eager"
    assert len(translations(translator)) == len(TEXTS)
    report = full_report(translator)
    assert report["not_by_ctranslate2"] == f"it cannot do {reason}"


def test_without_it_our_loop_decodes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ctranslate2, "is_installed", lambda: False)
    assert load(folder).engine == "eager"
    assert "pip install 'specdec-plugins[ctranslate2]'" in caplog.text
