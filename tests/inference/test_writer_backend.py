"""``--precision int8`` without drafts: the writer's sentences, whatever is decoded with them."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ONE_LAYER, examples, make_verifier, vary_output
from helpers.models.drafters import save_checkpoint
from helpers.runs.inference_runs import SENTENCES, RunScript, make_settings
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.decoding.acceptance import SamplingRule
from specdec_plugins.decoding.build import made_up
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.engines.writer import kernel
from specdec_plugins.inference import Translation, Translator, load_translator, writer_backend
from specdec_plugins.inference.writer_backend import MAX_ROWS, WriterGenerator, writes

pytestmark = pytest.mark.skipif(
    kernel.FAMILY is None, reason="the processor has none of the writer's instructions"
)


def load(world: Path, **options: Any) -> Translator:
    plain = {"strategy": "AR", "path": None, "engine": "auto", "precision": "int8"}
    return load_translator(make_settings(world, **{**plain, **options}))


@cache
def writer(world: Path, batch: int = MAX_ROWS, min_len: int = 1) -> Translator:
    limits = GenerationLimits(max_len_b=9, min_len=min_len)
    return load(world, batch=batch, limits=limits)


def words(translations: list[Translation]) -> list[tuple[str, float | None, bool]]:
    return [(line.text, line.score, line.limited) for line in translations]


def test_the_default_engine_writes_in_int8(world: Path, run: RunScript, tmp_path: Path) -> None:
    """The command, too, which computes no scores."""
    translator = writer(world)
    assert (translator.engine, translator.precision) == ("writer", "int8")
    flags = {"path": None, "precision": "int8", "batch": str(MAX_ROWS)}
    assert run("--strategy", "AR", **flags) == 0
    translator.generator.statistics = DecodingStatistics()  # other tests may have translated
    expected = [line.text for line in translator.translate(SENTENCES)]
    assert (tmp_path / "out.txt").read_text("utf-8").splitlines() == expected
    counted = translator.statistics
    assert counted.sentences == len(SENTENCES)
    assert counted.steps == counted.committed_tokens == counted.verifier_calls > len(SENTENCES)


@pytest.mark.parametrize(
    "options",
    [
        {"engine": "onnxruntime"},
        {"batch": MAX_ROWS + 1},
        {"trace": True},
        {"rule": SamplingRule()},
        {"limits": GenerationLimits(repetition_penalty=1.2)},
    ],
)
def test_the_loop_decodes_the_rest(world: Path, options: dict[str, object]) -> None:
    assert load(world, **options).engine == "onnxruntime"


@pytest.mark.parametrize(
    ("processor", "precision"), [("Zen (avx2)", "float32"), ("Xeon (avx512_vnni)", "int8")]
)
def test_the_encoder_is_exact_where_int8_has_seven_bits(
    processor: str, precision: str, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_backend, "processor_name", lambda: processor)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    generator = load(world).generator
    assert isinstance(generator, WriterGenerator)
    assert generator._engine.precision == precision


@pytest.mark.parametrize("method", ["forward", "forward_embedding"])
def test_the_loop_runs_an_encoder_of_another_kind(world: Path, method: str) -> None:
    settings = make_settings(world, strategy="AR", precision="int8", engine="auto")
    verifier = make_verifier()
    assert writes(settings, verifier)
    encoder = verifier.encoder
    encoder.__class__ = type("Other", (type(encoder),), {method: lambda *_: None})
    assert not writes(settings, verifier)


@examples(25)
@given(
    order=st.permutations(SENTENCES),
    batch=st.integers(1, MAX_ROWS),
    min_len=st.sampled_from([1, 4]),
    prefix=st.sampled_from(["", "w3", "w3 w4 w5"]),
)
def test_no_output_depends_on_its_batch(
    world: Path, order: list[str], batch: int, min_len: int, prefix: str
) -> None:
    alone, together = writer(world, 1, min_len), writer(world, batch, min_len)
    prefixes = [prefix if n % 2 else "" for n in range(len(order))]
    expected = [
        next(iter(alone.translate([line], target_prefix=[begin])))
        for line, begin in zip(order, prefixes)
    ]
    found = list(together.translate(order, target_prefix=prefixes))
    assert words(found) == words(expected)
    for line, begin in zip(found, prefixes):
        assert line.text.startswith(begin)
        assert len(line.tokens) > min_len or line.limited


def test_limits_are_those_of_the_loop(world: Path) -> None:
    """Each combination ends in EOS, and is as long as the loop lets it be."""
    for limits in (GenerationLimits(max_len_b=2), GenerationLimits(max_len_b=3, min_len=3)):
        greedy = list(load(world, precision="float32", limits=limits).translate(SENTENCES))
        found = list(load(world, limits=limits).translate(SENTENCES))
        assert all(line.tokens[-1] == "</s>" for line in found)
        assert all(len(line.tokens) <= limits.max_len_b + 1 for line in found)
        assert [line.limited for line in found] == [line.limited for line in greedy]


@pytest.mark.parametrize(("unkpen", "temperature"), [(0.0, 1.0), (2.5, 1.0), (0.0, 0.5)])
def test_scores_are_the_loops_up_to_rounding(
    world: Path, unkpen: float, temperature: float
) -> None:
    """Of the same tokens, the unknown one among them: all but EOS are forced, by the limit that."""
    limits = GenerationLimits(max_len_b=3, unkpen=unkpen, min_len=3, temperature=temperature)
    loop = load(world, limits=limits, precision="float64", engine="eager")
    sample = made_up(loop.codec.source, 2, 5)
    prefix = torch.tensor([[4, 9, 7], [6, loop.codec.target.unk(), 11]])
    results = [
        translator.generator.generate([], sample, prefix_tokens=prefix)
        for translator in (loop, load(world, limits=limits))
    ]
    for (expected,), (found,) in zip(*results):
        assert found["tokens"].tolist() == expected["tokens"].tolist()
        assert found["forced"] == expected["forced"] == 3
        exact = expected["positional_scores"].float()
        # int8 rounds by less than a tenth; a penalty that is left out is a third.
        assert (found["positional_scores"] - exact).norm() < 0.1 * exact.norm()
        assert float(found["score"]) == pytest.approx(float(expected["score"]), rel=0.1)


def test_unknown_words_are_penalised(world: Path, tmp_path: Path) -> None:
    """Here the unknown word resembles the word that is written first, and would win."""
    target = writer(world).codec.target
    verifier = vary_output(make_verifier(seed=13, **ONE_LAYER))
    options = {"ar_path": str(tmp_path / "verifier.pt"), "source_lang": "en", "target_lang": "de"}
    save_checkpoint(tmp_path / "verifier.pt", verifier)
    first = next(iter(load(world, **options).translate(SENTENCES))).tokens[0]
    with torch.no_grad():
        weight = verifier.decoder.output_projection.weight
        weight[target.unk()] = 2 * weight[target.index(first)]
    save_checkpoint(tmp_path / "verifier.pt", verifier)
    for penalty in (0.0, 99.0):
        translator = load(world, **options, limits=GenerationLimits(unkpen=penalty, max_len_b=9))
        assert translator.engine == "writer"
        found = [token for line in translator.translate(SENTENCES) for token in line.tokens]
        assert ("<unk>" in found) == (penalty == 0)


@pytest.mark.parametrize("threads", [2, 3])
def test_no_output_depends_on_the_number_of_threads(world: Path, threads: int) -> None:
    alone = words(list(writer(world).translate(SENTENCES)))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        limits = GenerationLimits(max_len_b=9)
        found = load(world, batch=MAX_ROWS, limits=limits).translate(SENTENCES)
        assert words(list(found)) == alone
    finally:
        torch.set_num_threads(before)
