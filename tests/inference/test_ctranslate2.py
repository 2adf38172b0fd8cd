"""AR by CTranslate2: our own loop's output, for every verifier that it takes; or our own loop."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import make_dictionary, make_verifier, vary_output
from fairseq.models.transformer import TransformerModelBase
from helpers.models.drafters import save_checkpoint

from specdec_plugins.decoding.acceptance import choose_rule
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.inference import Settings, Translator, backends, load_translator
from specdec_plugins.inference.backends import convert_verifier
from specdec_plugins.inference.report import full_report
from specdec_plugins.inference.text import TextCodec

pytest.importorskip("ctranslate2", reason="the extra [ctranslate2] is not installed")

TEXTS = ["w3 w4 w5 w6", " ", "w7", "w1 unknown w3 </s> w5 w6 w7", "w11 w12 w13", "w2"]
LIMITS = GenerationLimits(max_len_a=1.5, max_len_b=3, min_len=3)
LEARNED = {f"{side}_learned_pos": True for side in ("encoder", "decoder")}
PRE_NORM = {f"{side}_normalize_before": True for side in ("encoder", "decoder")}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "pre-norm, learned": {**PRE_NORM, **LEARNED, "seed": 4},
    "layers, activation": {"encoder_layers": 1, "activation_fn": "gelu"},
    "shared": {"share_all_embeddings": True, "layernorm_embedding": True},
    "unscaled": {"no_scale_embedding": True, "share_decoder_input_output_embed": True},
}


def save(folder: Path, verifier: TransformerModelBase) -> Path:
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
    assert (ours.engine, theirs.engine) == ("onnxruntime", "ctranslate2")
    found, expected = full_report(theirs), full_report(ours)
    for name in ("sentences", "committed_tokens", "steps", "verifier_calls"):
        assert found[name] == expected[name]
    assert found["versions"]["ctranslate2"]
    assert found["latency_ms"]["p50"] > 0


def test_outputs_may_be_empty(folder: Path) -> None:
    """All of a batch, too; of one line as alone."""
    limits = GenerationLimits(max_len_a=0, max_len_b=0, min_len=0)
    ours, theirs = (load(folder, by, limits=limits) for by in ("ours", "ctranslate2"))
    assert theirs.engine == "ctranslate2"
    assert translations(theirs) == translations(ours)
    (result,) = theirs.translate_batch(TEXTS[:1], max_lengths=[3])
    assert len(result.tokens) > 1


def test_its_beams(folder: Path) -> None:
    """Are its own; where random outputs meet the length limit they are no longer fairseq's."""
    found = list(load(folder, beam=4, nbest=4).translate(TEXTS))
    assert [len(result.hypotheses) for result in found] == [4, 0, 4, 4, 4, 4]
    assert all(len({x.text for x in result.hypotheses}) > 1 for result in found if result.text)
    assert (found[0].score, found[0].hypotheses[0].positional_scores) == (None, [])
    greedy = [result.text for result in load(folder).translate(TEXTS)]
    assert [result.text for result in found] != greedy


CANNOT: list[dict[str, Any]] = [
    {"beam": 3, "limits": GenerationLimits(normalize_scores=False)},
    {"beam": 3, "search_options": {"no_repeat_ngram_size": 2}},
    {"beam": 3, "limits": GenerationLimits(temperature=2.0)},
    {"precision": "float64"},
    {"trace": True},
    {"limits": GenerationLimits(unkpen=1.0)},
    {"limits": GenerationLimits(repetition_penalty=1.5)},
    {"target_prefix": "w4"},
    {"rule": choose_rule({"sampling": True})},
]


@pytest.mark.parametrize("given", CANNOT, ids=str)
def test_our_loop_does_what_ctranslate2_cannot(given: dict[str, Any], folder: Path) -> None:
    translator = load(folder, **given)
    assert translator.engine == ("eager" if "precision" in given else "onnxruntime")
    assert full_report(translator)["not_by_ctranslate2"]


def test_our_loop_decodes_where_a_conversion_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conversion that makes another model, sides that differ, and a disk without room."""
    convert = partial(convert_verifier, make_verifier(seed=4).float().requires_grad_(False))
    with monkeypatch.context() as patch:
        patch.setattr(backends, "convert_verifier", lambda _, *rest: convert(*rest))
        assert load(folder).engine == "onnxruntime"
    for option in ({"encoder_normalize_before": True}, {"decoder_attention_heads": 4}):
        save(folder, make_verifier(**option))
        assert load(folder).engine == "onnxruntime"
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "gone"))
    assert load(folder).engine == "onnxruntime"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_verifier(tmp_path: Path, kind: str) -> None:
    """Random ones that never prefer the padding symbol."""
    save(tmp_path, vary_output(make_verifier(**{"seed": 3, **KINDS[kind]})))
    expected = translations(load(tmp_path, "ours"))
    assert len(set(expected)) > 4
    theirs = load(tmp_path)
    assert theirs.engine == "ctranslate2"
    assert translations(theirs) == expected


def test_a_model_that_it_cannot_take(tmp_path: Path) -> None:
    codec = TextCodec(make_dictionary(), make_dictionary(), 64)
    for option in ({"activation_fn": "tanh"}, {"no_token_positional_embeddings": True}):
        verifier = make_verifier(**option).float().requires_grad_(False)
        with pytest.raises(InferenceError):
            convert_verifier(verifier, codec, tmp_path / "model")
        assert not (tmp_path / "model").exists()
