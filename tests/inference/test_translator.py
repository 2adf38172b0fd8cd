"""The translator as a library: what it is given, and what it gives when."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ONE_LAYER, make_verifier, vary_output
from helpers.models.drafters import save_checkpoint
from helpers.models.trained import Trained
from helpers.runs.inference_runs import SENTENCES, make_settings
from models.test_acceptance_head import make_head

from specdec_plugins.checkpoints import loading
from specdec_plugins.checkpoints.head_file import save_head
from specdec_plugins.decoding.acceptance import RelaxedRule, SamplingRule
from specdec_plugins.decoding.controllers.simple import AcceptanceHeadController
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.files.errors import CheckpointError, InferenceError
from specdec_plugins.inference import Settings, load_translator
from specdec_plugins.models.acceptance_head import fingerprint


def test_the_head_beside_the_drafter_is_used(world: Path, tmp_path: Path) -> None:
    """Strict output is the same, of which less is verified; for another rule it is refused."""
    for name in ("verifier.pt", "drafter.pt"):
        (tmp_path / name).symlink_to(world / name)
    files = {"path": str(tmp_path / "drafter.pt"), "ar_path": str(tmp_path / "verifier.pt")}
    plain = load_translator(make_settings(world, **files))
    expected = [result.text for result in plain.translate(SENTENCES)]
    # ONNX Runtime frees a model's weights; a head knows its drafter by them.
    pair = load_translator(make_settings(world, engine="eager", **files)).generator
    head = make_head(drafter=fingerprint(pair.drafter), bias=-1.0)
    save_head(tmp_path / "acceptance_head.pt", head)
    options = AcceptanceHeadController(stop_threshold=0.9)
    found = load_translator(make_settings(world, controller=options, **files))
    assert [result.text for result in found.translate(SENTENCES)] == expected
    assert found.statistics.verified_tokens < found.statistics.drafted_tokens
    relaxed = {"controller": options, "rule": RelaxedRule(3, 1.0), **files}
    with pytest.raises(CheckpointError, match="--beta 3"):
        load_translator(make_settings(world, **relaxed))


def test_each_file_is_read_once(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the one that names the languages: to read gigabytes takes seconds."""
    read: list[str] = []
    load = loading.load_archive

    def noted(name: str) -> dict[str, Any]:
        read.append(name)
        return load(name)

    monkeypatch.setattr(loading, "load_archive", noted)
    for settings in ({}, {"path": None}, {"ar_path": None, "strategy": "drafter"}):
        asked = make_settings(world, engine="eager", **settings)
        read.clear()
        load_translator(asked)
        assert sorted(read) == sorted(filter(None, [asked.ar_path, asked.path]))


@pytest.mark.parametrize(("engine", "batch"), [("eager", 3), ("onnxruntime", 1)])
def test_threads_wait_for_each_other(engine: str, batch: int, world: Path) -> None:
    if engine == "onnxruntime":
        pytest.importorskip("onnxruntime", reason="the extra [int8] is not installed")
    translator = load_translator(make_settings(world, engine=engine, batch=batch))
    weight = translator.generator.model.decoder.layers[0].fc1.weight
    assert (weight.numel() > 0) == (engine == "eager")  # ONNX Runtime has its own.
    expected = [result.text for result in translator.translate(SENTENCES)]
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(lambda: [*translator.translate(SENTENCES)]) for _ in range(8)]
    for call in calls:
        assert [result.text for result in call.result()] == expected


@pytest.mark.parametrize("side", ["decoder", "encoder"])
def test_scores_that_are_no_numbers(side: str, world: Path, tmp_path: Path) -> None:
    """As where finite weights overflow: never put out as if nothing was."""
    state = torch.load(world / "verifier.pt", weights_only=False)
    state["model"][f"{side}.layers.0.fc1.weight"][::2] = 3e38
    state["model"][f"{side}.layers.0.fc1.weight"][1::2] = -3e38
    torch.save(state, tmp_path / "verifier.pt")
    files = {"ar_path": str(tmp_path / "verifier.pt"), "engine": "eager"}
    ways: list[dict[str, object]] = [{"strategy": "AR"}, {"strategy": "fairseq", "beam": 2}, {}]
    for how in (*ways, {"batch": 3, "rule": SamplingRule()}):
        translator = load_translator(make_settings(world, **files, **how))
        with pytest.raises(InferenceError, match="scores are not numbers"):
            list(translator.translate(SENTENCES))
        results = translator.translate_batch(SENTENCES)
        assert [isinstance(result, InferenceError) for result in results] == [True] * len(SENTENCES)


def test_windows_change_nothing(world: Path, greedy: list[str]) -> None:
    """Lines come as soon as they are known; blank ones stay blank."""
    translator = load_translator(make_settings(world, batch=2))
    lines = [line for sentence in SENTENCES for line in (sentence, "")]
    remaining = iter(lines)
    next(translator.translate(remaining, window=4))
    assert [*remaining] == lines[4:]
    for window in (1, 3):
        results = list(translator.translate(lines, window))
        assert [result.text for result in results[::2]] == greedy
        assert all(r.text == "" and not r.tokens and not r.accepted for r in results[1::2])


def test_lines_of_a_program(world: Path) -> None:
    translator = load_translator(make_settings(world))
    with pytest.raises(TypeError):
        translator.translate("w1 w2")
    expected = [result.text for result in translator.translate(["w1", "w2 w3"])]
    assert [result.text for result in translator.translate(["w1\n", "w2\nw3\r\n"])] == expected


def test_a_translation_tells_tokens_and_score(world: Path) -> None:
    """As fairseq's greedy search does, which makes one pass a token."""
    stock = load_translator(make_settings(world, strategy="fairseq", beam=1, batch=4))
    translator = load_translator(make_settings(world, keep_bpe=True))
    for result, other in zip(translator.translate(SENTENCES), stock.translate(SENTENCES)):
        assert result.tokens == other.tokens
        assert result.tokens[-1] == "</s>"
        assert " ".join(result.tokens[:-1]) == result.text
        assert result.score == pytest.approx(other.score, abs=1e-4)
    assert stock.statistics.steps == stock.statistics.committed_tokens


def test_a_translation_tells_that_it_is_as_long_as_it_may_be(trained: Trained) -> None:
    """And with room for one word more it is not, unless it would go on."""
    files = {"path": str(trained.drafter), "ar_path": str(trained.verifier)}
    wide = Settings(str(trained.data), **files, limits=GenerationLimits(max_len_b=40))
    plain = list(load_translator(wide).translate(trained.source))
    words = sorted({len(result.tokens) - 1 for result in plain})
    assert len(words) > 2
    for length in (words[0], words[0] + 1, words[1]):
        for strategy in ("specdec", "AR", "fairseq"):
            limits = GenerationLimits(max_len_b=length)
            settings = replace(wide, limits=limits, strategy=strategy, beam=1)
            for result, whole in zip(load_translator(settings).translate(trained.source), plain):
                assert result.limited is (len(whole.tokens) > length)
                assert len(result.tokens) == min(len(whole.tokens), length + 1)


@pytest.mark.parametrize("settings", [{}, {"strategy": "AR", "batch": 3}, {"strategy": "fairseq"}])
def test_every_translation_says_whether_words_are_unknown(
    settings: dict[str, object], world: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A service sees it for each text, and its log names the first of each text, not of the
    process. An output that the model gave an unknown word says so, too."""
    translator = load_translator(make_settings(world, engine="eager", **settings))
    for _ in range(2):
        caplog.clear()
        found = list(translator.translate(["w3 w4", "w1 never heard", "", "unheard"]))
        reads = [translation.unknown for translation in found]
        assert reads[1:] == [True, False, True]
        assert reads[0] == ("<unk>" in found[0].tokens)
        warned = [record.message for record in caplog.records if "lacks" in record.message]
        assert [message[:33] for message in warned] == ["line 2: the dictionary lacks neve"]
    if not settings:
        verifier = vary_output(make_verifier(seed=13, **ONE_LAYER))
        dictionary = translator.codec.target
        first = next(iter(translator.translate(SENTENCES))).tokens[0]
        with torch.no_grad():
            weight = verifier.decoder.output_projection.weight
            weight[dictionary.unk()] = 2 * weight[dictionary.index(first)]
        path = save_checkpoint(tmp_path / "verifier.pt", verifier)
        languages = {"source_lang": "en", "target_lang": "de"}
        settings = {"ar_path": str(path), "path": None, "engine": "eager", **languages}
        found = list(load_translator(make_settings(world, **settings)).translate(SENTENCES))
        assert any(translation.unknown for translation in found)
        assert all(item.unknown == ("<unk>" in item.tokens) for item in found)


@pytest.mark.parametrize("strategy", ["specdec", "AR", "drafter"])
def test_limits_of_a_generator_cannot_be_set(strategy: str, world: Path) -> None:
    """They would be honoured in part only."""
    translator = load_translator(make_settings(world, engine="eager", strategy=strategy))
    generator: Any = translator.generator
    assert generator.limits == translator.settings.limits
    with pytest.raises(AttributeError):
        generator.limits = GenerationLimits(max_len_b=2)


def test_lone_surrogates_are_unknown(world: Path) -> None:
    """As U+FFFD is, also where sentences are told apart, by what takes none."""
    split = {"split_sentences": True, "source_lang": "en", "target_lang": "de"}
    for options in (split, {}):
        translator = load_translator(make_settings(world, **options))
        found = list(translator.translate(["w1 \ud800"]))
        assert found == list(translator.translate(["w1 \ufffd"]))
    with pytest.raises(TypeError, match="one string"):
        translator.translate_batch("w1")


def test_a_bad_line_is_one_result(world: Path) -> None:
    """Of a batch of programs; ``translate`` raises it when it comes to it."""
    limits = GenerationLimits(max_len_a=1, max_len_b=0, min_len=5)
    translator = load_translator(make_settings(world, limits=limits, batch=4))
    bad = [len(line.split()) < 4 for line in SENTENCES]
    results = translator.translate_batch(SENTENCES)
    assert [isinstance(result, InferenceError) for result in results] == bad
    assert any(bad)
    number = bad.index(True) + 1
    assert f"line {number}: --min-len 5" in str(results[number - 1])
    good = [line for line, is_bad in zip(SENTENCES, bad) if not is_bad]
    expected = [result.text for result in translator.translate(good)]
    assert [result.text for result in results if not isinstance(result, InferenceError)] == expected
    whole = translator.translate(SENTENCES, window=1)
    assert [next(whole).text for _ in range(number - 1)] == expected[: number - 1]
    with pytest.raises(InferenceError, match=f"line {number}"):
        next(whole)
    assert list(whole) == [], "no line after it is taken for its own"
