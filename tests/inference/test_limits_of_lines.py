"""``translate_batch(lines, max_lengths=...)``: each line as alone under such settings."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conftest import examples
from helpers.runs.inference_runs import SENTENCES, make_settings
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.decoding.controllers.simple import Constant, Tree
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.engines.writer import kernel
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.inference import Translation, Translator, load_translator

EXACT = {"precision": "float64", "engine": "eager"}
WAYS: dict[str, dict[str, Any]] = {
    "blocks": {"controller": Constant()},
    "tree": {"controller": Tree()},
    "copy": {"path": None},
    "source": {"drafts": "source"},
    "AR": {"strategy": "AR"},
    "copy, prefix": {"path": None, "target_prefix": "w4 w2"},
    "drafter alone": {"strategy": "drafter"},
}
WRITER = {"strategy": "AR", "precision": "int8", "path": None}
RULE = GenerationLimits(max_len_a=0.5, max_len_b=3)
"""The settings' own limits: from 3 to 9 tokens, for these sentences."""
LENGTHS = st.sampled_from([None, 1, 5])


@cache
def load(
    world: Path, way: str, exact: bool, batch: int = 1, length: int | None = None
) -> Translator:
    """Load a translator, whose limits are ``RULE`` or one length for all lines."""
    limits = RULE if length is None else GenerationLimits(max_len_a=0, max_len_b=length)
    given = {**WAYS, "writer": WRITER}[way]
    settings = {"limits": limits, "batch": batch, **(EXACT if exact else {}), **given}
    return load_translator(make_settings(world, **settings))


def assert_as_alone(
    world: Path, way: str, exact: bool, lines: list[str], lengths: list[int | None], batch: int
) -> None:
    found = load(world, way, exact, batch).translate_batch(lines, max_lengths=lengths)
    for result, line, length in zip(found, lines, lengths, strict=True):
        (expected,) = load(world, way, exact, 1, length).translate_batch([line])
        assert isinstance(result, Translation)
        assert isinstance(expected, Translation)
        assert result.tokens == expected.tokens
        assert result.score == pytest.approx(expected.score, abs=1e-12 if exact else 1e-4)
        assert result.limited == expected.limited
        assert length is None or len(result.tokens) <= length + 1


@pytest.mark.parametrize("exact", [True, False], ids=["eager", "default engine"])
@pytest.mark.parametrize("way", WAYS)
@examples(15)
@given(data=st.data(), lines=st.permutations(SENTENCES), batch=st.sampled_from([1, 3]))
def test_each_line_is_as_alone(
    way: str, exact: bool, data: st.DataObject, lines: list[str], batch: int, world: Path
) -> None:
    lengths = [data.draw(LENGTHS) for _ in lines]
    assert_as_alone(world, way, exact, lines, lengths, batch)


@pytest.mark.skipif(kernel.FAMILY is None, reason="the processor lacks the writer's instructions")
@examples(15)
@given(data=st.data(), lines=st.permutations(SENTENCES))
def test_so_the_writer_writes(data: st.DataObject, lines: list[str], world: Path) -> None:
    lengths = [data.draw(LENGTHS) for _ in lines]
    assert_as_alone(world, "writer", False, lines, lengths, 3)
    assert load(world, "writer", False).engine == "writer"


def test_ctranslate2_cuts_each_line(world: Path) -> None:
    pytest.importorskip("ctranslate2", reason="the extra [ctranslate2] is not installed")
    lengths = [None, 1, 12, 2, 5, None, 3, 1, 12]
    ours = load(world, "AR", False)
    settings = make_settings(
        world, strategy="AR", ar_backend="ctranslate2", limits=RULE, batch=4, path=None
    )
    translator = load_translator(settings)
    assert translator.engine == "ctranslate2"
    found = translator.translate_batch(SENTENCES, max_lengths=lengths)
    expected = ours.translate_batch(SENTENCES, max_lengths=lengths)
    for result, other in zip(found, expected, strict=True):
        assert isinstance(result, Translation)
        assert isinstance(other, Translation)
        assert (result.tokens, result.limited) == (other.tokens, other.limited)


def test_the_end_of_a_source_that_is_cut_may_be_missing(world: Path) -> None:
    translator = load(world, "AR", True, 3)
    room = translator.codec.longest - 1
    whole, cut = translator.translate_batch(["w1 " * room, "w1 " * (room + 1)])
    assert isinstance(whole, Translation)
    assert isinstance(cut, Translation)
    assert (cut.tokens, cut.limited) == (whole.tokens, True)
    assert not whole.limited


def test_a_length_that_cannot_be_is_its_lines_error(world: Path) -> None:
    translator = load(world, "AR", True, 3)
    lines = [*SENTENCES[:3], "", SENTENCES[3]]
    results = translator.translate_batch(lines, max_lengths=[4, -1, 0, 2, 10**6])
    faults = [str(result) for result in results if isinstance(result, InferenceError)]
    assert len(faults) == 2
    assert "line 2: --max-len-b -1: must be at least 0" in faults[0]
    assert "line 3: --min-len 1: is above" in faults[1]
    last = results[-1]
    assert isinstance(last, Translation)
    assert last.tokens[-1] == "</s>", "no more than the model has positions for"
    (wrong, right) = translator.translate_batch(lines[:2], max_lengths=["3", 3])  # type: ignore[list-item]
    assert "line 1: 'str' object" in str(wrong)
    assert isinstance(right, Translation)
    with pytest.raises(ValueError, match="shorter"):
        translator.translate_batch(lines, max_lengths=[4])


@pytest.mark.parametrize("options", [{"beam": 4}, {"strategy": "fairseq", "beam": 1}])
def test_a_search_has_one_limit(options: dict[str, object], world: Path) -> None:
    translator = load_translator(make_settings(world, **options))
    with pytest.raises(ValueError, match=r"max_lengths: .*beam"):
        translator.translate_batch(SENTENCES[:2], max_lengths=[None, 3])
    results = translator.translate_batch(SENTENCES[:2], max_lengths=[None, None])
    assert all(isinstance(result, Translation) for result in results)
    # That of a batch's longest source.
    limits = GenerationLimits(max_len_a=0.5, max_len_b=1)
    settings = make_settings(world, **options, batch=len(SENTENCES) + 1, limits=limits)
    found = list(load_translator(settings).translate([*SENTENCES, "w1 " * 23]))
    lengths = [len(line.tokens) for line in found]
    assert [line.limited for line in found] == [length > 13 for length in lengths]
    own = [limits.max_length(len(line.split()) + 1, 1000) for line in SENTENCES]
    assert any(limit < length <= 13 for limit, length in zip(own, lengths))
