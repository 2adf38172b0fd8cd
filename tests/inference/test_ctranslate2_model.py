"""A verifier as a model of CTranslate2's says what it says as ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import make_dictionary, make_verifier, vary_output
from drafters import save_checkpoint

from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.evaluation.ctranslate2_system import CTranslate2Job
from specdec_plugins.evaluation.texts import Sentences
from specdec_plugins.evaluation.worker import SystemProcess
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.lines import Line
from specdec_plugins.inference import Settings, Translator, load_translator
from specdec_plugins.inference.ctranslate2 import convert_verifier

ROOT = Path(__file__).resolve().parents[2]
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "pre-norm, learned": {
        "seed": 4,
        "encoder_normalize_before": True,
        "decoder_normalize_before": True,
        "encoder_learned_pos": True,
        "decoder_learned_pos": True,
    },
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
def _ctranslate2() -> None:
    pytest.importorskip("ctranslate2", reason="CTranslate2, of the extra [bench], is not here")


def load(folder: Path, limits: GenerationLimits, **model: Any) -> Translator:
    """A random verifier as our AR; a seed with which it never prefers the padding symbol."""
    for language in ("en", "de"):
        make_dictionary().save(str(folder / f"dict.{language}.txt"))
    verifier = vary_output(make_verifier(seed=model.pop("seed", 3), **model))
    path = save_checkpoint(folder / "verifier.pt", verifier, source_lang="en", target_lang="de")
    return load_translator(Settings(str(folder), str(path), strategy="AR", limits=limits))


def decode(translator: Translator, lines: list[Line], folder: Path) -> list[str]:
    """By CTranslate2 in float32, two sentences at a time, in a process of its own."""
    generator, codec = translator.generator, translator.codec
    assert isinstance(generator, SpeculativeGenerator)
    assert generator.model is not None
    convert_verifier(generator.model, codec.source, codec.target, folder / "model")
    limits = translator.settings.limits
    (text := folder / "in.txt").write_text("".join(f"{line.text}\n" for line in lines))
    sentences = Sentences.read(str(text), None, None, translator)
    places = sentences.batches(2)
    tokens, most = (
        [[column[i] for i in batch] for batch in places]
        for column in (sentences.tokens, sentences.longest)
    )
    job = CTranslate2Job(str(folder / "model"), "float32", 1, tokens, most, limits.min_len)
    with SystemProcess("CTranslate2", job, threads=1) as process:
        process.load()
        decoded = process.decode(len(places), 1)
    assert min(decoded.seconds) > 0
    assert decoded.figures["memory"] < 150 * 2**20, "torch is no part of it"
    order = [i for batch in places for i in batch]
    said = dict(zip(order, decoded.outputs, strict=True))
    return [sentences.joined(said[i]) for i in range(len(order))]  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_verifier(tmp_path: Path, kind: str) -> None:
    """The same text, with limits that depend on the source's length, and unknown words."""
    limits = GenerationLimits(max_len_a=1.5, max_len_b=3, min_len=3)
    translator = load(tmp_path, limits, **KINDS[kind])
    texts = ["w3 w4 w5 w6", " ", "w7", "w1 unknown w3 <s> w5 w6 w7", "w11 w12 w13"]
    lines = [Line(number, text) for number, text in enumerate(texts, start=1)]
    expected = [result.text for result in translator.translate(texts)]
    assert len({text for text in expected if text}) == 4
    assert decode(translator, lines, tmp_path) == [text for text in expected if text]


def test_the_shipped_pair_says_the_same(tmp_path: Path) -> None:
    translator = load_translator(
        Settings.of_model(ROOT / "checkpoints" / "multi30k.en-de", strategy="AR", batch=32)
    )
    texts = (ROOT / "data" / "captions.en").read_text("utf-8").splitlines()
    lines = [Line(number, text) for number, text in enumerate(texts, start=1)]
    expected = [result.text for result in translator.translate(texts)]
    found = decode(translator, lines, tmp_path)
    # Float32 rounds otherwise there: a near-tie may go the other way.
    assert sum(a != b for a, b in zip(found, expected, strict=True)) <= len(texts) // 50


@pytest.mark.parametrize(
    "option", [{"activation_fn": "tanh"}, {"no_token_positional_embeddings": True}]
)
def test_a_model_that_it_cannot_take(tmp_path: Path, option: dict[str, Any]) -> None:
    verifier, words = make_verifier(**option).float(), make_dictionary()
    with pytest.raises(InferenceError, match="cannot take this verifier"):
        convert_verifier(verifier.requires_grad_(False), words, words, tmp_path / "model")
    assert not (tmp_path / "model").exists()
