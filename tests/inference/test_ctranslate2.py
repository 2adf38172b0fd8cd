"""AR by CTranslate2: our own loop's output, for every verifier that it takes; or our own loop."""

from __future__ import annotations

import logging
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import make_dictionary, make_verifier, vary_output
from drafters import save_checkpoint

from specdec_plugins.decoding.acceptance import choose_rule
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.evaluation.ctranslate2_system import CTranslate2Job
from specdec_plugins.evaluation.texts import Sentences
from specdec_plugins.evaluation.worker import SystemProcess
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.inference import Settings, Translator, ctranslate2, load_translator
from specdec_plugins.inference.ctranslate2 import convert_verifier
from specdec_plugins.inference.report import full_report

pytest.importorskip("ctranslate2", reason="the extra [ctranslate2] is not installed")

ROOT = Path(__file__).resolve().parents[2]
TEXTS = ["w3 w4 w5 w6", " ", "w7", "w1 unknown w3 </s> w5 w6 w7", "w11 w12 w13", "w2"]
LIMITS = GenerationLimits(max_len_a=1.5, max_len_b=3, min_len=3)
LEARNED = {f"{side}_learned_pos": True for side in ("encoder", "decoder")}
PRE_NORM = {f"{side}_normalize_before": True for side in ("encoder", "decoder")}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "pre-norm, learned": {**PRE_NORM, **LEARNED, "seed": 4},
    "both sides differ": {
        "encoder_normalize_before": True,
        "encoder_layers": 1,
        "decoder_attention_heads": 4,
        "activation_fn": "gelu",
    },
    "shared": {"share_all_embeddings": True, "layernorm_embedding": True},
    "unscaled": {"no_scale_embedding": True, "share_decoder_input_output_embed": True},
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def save(folder: Path, verifier: Any) -> Path:
    for language in ("en", "de"):
        make_dictionary().save(str(folder / f"dict.{language}.txt"))
    save_checkpoint(folder / "verifier.pt", verifier, source_lang="en", target_lang="de")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a verifier that prefers the padding symbol."""
    verifier = vary_output(make_verifier(seed=3))
    weight = verifier.decoder.output_projection.weight.data
    weight[1] = 2 * weight[7]
    return save(tmp_path, verifier)


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
    with pytest.raises(ValueError, match=r"^target_prefix: ctranslate2"):
        list(theirs.translate(TEXTS, target_prefix="w4"))
    found, expected = full_report(theirs), full_report(ours)
    for name in ("sentences", "committed_tokens", "steps", "verifier_calls"):
        assert found[name] == expected[name]
    assert found["versions"]["ctranslate2"]
    assert found["latency_ms"]["p50"] > 0


CANNOT: dict[str, dict[str, Any]] = {
    "cannot do precision float64": {"precision": "float64"},
    "cannot do a trace": {"trace": True},
    "cannot do a penalty for unknown words": {"limits": GenerationLimits(unkpen=1.0)},
    "cannot do a repetition penalty": {"limits": GenerationLimits(repetition_penalty=1.5)},
    "cannot do a target prefix": {"target_prefix": "w4"},
    "cannot do sampling": {"rule": choose_rule({"sampling": True})},
    "makes something else": {},
    "gone": {},
    "pip install 'specdec-plugins[ctranslate2]'": {},
}


@pytest.mark.parametrize("reason", CANNOT)
def test_what_it_cannot_do_goes_by_our_loop(
    reason: str, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = translations(load(folder, "ours", **CANNOT[reason]))
    if reason == "makes something else":
        other = make_verifier(seed=4).float().requires_grad_(False)
        convert = partial(convert_verifier, other)
        monkeypatch.setattr(ctranslate2, "convert_verifier", lambda _, *rest: convert(*rest))
    elif reason == "gone":  # there is no room
        monkeypatch.setattr(tempfile, "tempdir", str(folder / "gone"))
    elif reason.startswith("pip"):
        monkeypatch.setattr(ctranslate2, "is_installed", lambda: False)
    with caplog.at_level(logging.WARNING):
        translator = load(folder, **CANNOT[reason])
    assert "our own loop decodes" in caplog.text
    assert reason in str(full_report(translator)["not_by_ctranslate2"])
    assert translator.engine == "eager"
    if "sampling" not in reason:
        assert translations(translator) == expected


def in_a_process(translator: Translator, lines: list[str], folder: Path) -> list[str]:
    """Decode by CTranslate2 in float32, two sentences at a time, as evaluation does."""
    generator, codec = translator.generator, translator.codec
    assert isinstance(generator, SpeculativeGenerator)
    assert generator.model is not None
    convert_verifier(generator.model, codec.source, codec.target, folder / "model")
    (text := folder / "in.txt").write_text("".join(f"{line}\n" for line in lines))
    sentences = Sentences.read(str(text), None, None, translator)
    batches = sentences.batches(2)
    tokens, longest = (
        [[column[i] for i in batch] for batch in batches]
        for column in (sentences.tokens, sentences.longest)
    )
    min_len = translator.settings.limits.min_len
    job = CTranslate2Job(str(folder / "model"), "float32", 1, tokens, longest, min_len)
    with SystemProcess("CTranslate2", job, threads=1) as process:
        process.load()
        decoded = process.decode(len(batches), 1)
    assert min(decoded.seconds) > 0
    assert decoded.figures["memory"] < 150 * 2**20, "torch is no part of it"
    outputs = dict(zip((i for batch in batches for i in batch), decoded.outputs, strict=True))
    return [sentences.joined(outputs[i]) for i in sorted(outputs)]  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_verifier(tmp_path: Path, kind: str) -> None:
    """Random ones that never prefer the padding symbol."""
    options = {"seed": 3, **KINDS[kind]}
    save(tmp_path, vary_output(make_verifier(**options)))
    ours = load(tmp_path, "ours")
    lines = [line.replace("</s>", "<s>") for line in TEXTS[:-1]]
    expected = [result.text for result in ours.translate(lines) if result.text]
    assert len(set(expected)) == 4
    assert in_a_process(ours, lines, tmp_path) == expected


def test_the_shipped_pair_says_the_same(tmp_path: Path) -> None:
    pair = ROOT / "checkpoints" / "multi30k.en-de"
    translator = load_translator(Settings.of_model(pair, strategy="AR", batch=32))
    texts = (ROOT / "data" / "captions.en").read_text("utf-8").splitlines()
    expected = [result.text for result in translator.translate(texts)]
    found = in_a_process(translator, texts, tmp_path)
    # Float32 rounds otherwise there: a near-tie may go the other way.
    assert sum(a != b for a, b in zip(found, expected, strict=True)) <= len(texts) // 50


def test_a_model_that_it_cannot_take(tmp_path: Path) -> None:
    words = make_dictionary()
    for option in ({"activation_fn": "tanh"}, {"no_token_positional_embeddings": True}):
        verifier = make_verifier(**option).float().requires_grad_(False)
        with pytest.raises(InferenceError, match="cannot take this verifier"):
            convert_verifier(verifier, words, words, tmp_path / "model")
        assert not (tmp_path / "model").exists()
