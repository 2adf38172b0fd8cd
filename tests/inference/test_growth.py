"""Outputs that grow: pieces are only appended, and together they are the text."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import examples
from helpers.runs.inference_runs import SENTENCES, make_settings
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.files.errors import InferenceError
from specdec_plugins.inference import Settings, Translation, Translator, load_translator
from specdec_plugins.inference.growth import GrowingText, Piece

ROOT = Path(__file__).resolve().parent.parent.parent
PAIRS = ("multi30k.en-de", "wmt.en-de")


def grown(translator: Translator, lines: list[str]) -> tuple[list[Any], list[list[Piece]]]:
    """Return translations, and the pieces of each."""
    pieces: list[list[Piece]] = [[] for _ in lines]
    return translator.translate_batch(lines, 1, lambda n, piece: pieces[n].append(piece)), pieces


@pytest.mark.parametrize(
    ("name", "how"),
    [
        (PAIRS[0], {"drafts": "drafter"}),
        (PAIRS[0], {"drafts": "copy"}),
        (PAIRS[0], {"strategy": "AR"}),
        pytest.param(PAIRS[1], {"drafts": "drafter"}, marks=pytest.mark.slow),
        pytest.param(PAIRS[1], {"drafts": "copy"}, marks=pytest.mark.slow),
        pytest.param(PAIRS[1], {"strategy": "AR"}, marks=pytest.mark.slow),
    ],
)
def test_pieces_of_the_shipped_pairs(name: str, how: dict[str, Any]) -> None:
    """By the default engine."""
    folder = ROOT / "checkpoints" / name
    lines = (folder / "example.en").read_text("utf-8").splitlines()[:4]
    translator = load_translator(Settings.of_model(folder, **how))
    expected = [result.text for result in translator.translate(lines)]
    for result, pieces, text in zip(*grown(translator, lines), expected):
        assert result.text == "".join(piece.text for piece in pieces) == text
        assert len(pieces) > 1
        assert any(piece.accepted for piece in pieces) == any(result.accepted)
        if how != {"drafts": "drafter"}:
            assert sum(not piece.accepted for piece in pieces) <= len(result.accepted)


@pytest.fixture(scope="module")
def written() -> Translator:
    """Its tokens are BPE's, which Moses' rules join."""
    return load_translator(Settings.of_model(ROOT / "checkpoints" / PAIRS[0], strategy="AR"))


@examples(100)
@given(data=st.data())
def test_any_tokens(data: st.DataObject, written: Translator) -> None:
    """Whatever a model commits, and in whatever steps; punctuation and quotes more than usual."""
    codec = written.codec
    marks = [n for n, symbol in enumerate(codec.target.symbols) if not symbol[0].isalpha()]
    token = st.sampled_from(marks[codec.target.nspecial :]) | st.integers(4, len(codec.target) - 1)
    steps = data.draw(st.lists(st.lists(token, min_size=1, max_size=4), max_size=6))
    pieces: list[Piece] = []
    growing = GrowingText(codec, pieces.append, [])
    for step in steps:
        growing.commit(len(growing.tokens), step, data.draw(st.integers(0, len(step))))
    text = codec.decode(torch.tensor([token for step in steps for token in step]).long())
    growing.end(text)
    assert "".join(piece.text for piece in pieces) == text


def test_a_word_is_held_back_until_another_begins(world: Path) -> None:
    codec = load_translator(make_settings(world, strategy="AR")).codec
    pieces: list[Piece] = []
    growing = GrowingText(codec, pieces.append, [])
    first, second = (codec.target.index(word) for word in ("w1", "w2"))
    growing.commit(0, [first], 0)
    assert pieces == []
    growing.commit(1, [second, first], 1)
    assert [tuple(piece) for piece in pieces] == [("w1", False, 0), (" w2", True, 2)]
    growing.commit(3, [codec.target.eos()], 1)
    growing.end("w1 w2 w1")
    assert [tuple(piece) for piece in pieces[2:]] == [(" w1", False, 5)]


def test_characters_are_words_where_there_are_no_blanks() -> None:
    codec: Any = Namespace(decode=lambda tokens: "".join(map(chr, tokens.tolist())))
    pieces: list[str] = []
    growing = GrowingText(codec, lambda piece: pieces.append(piece.text), [])
    for count, word in enumerate(("\u6211", "\u4eec\u8bf4", "a", "b", "\u3002")):
        growing.commit(len(growing.tokens), list(map(ord, word)), count % 2)
    assert pieces == ["\u6211", "\u4eec", "\u8bf4", "a", "b", "\u3002"]


@pytest.mark.parametrize(
    "how",
    [
        {"batch": 3},
        {"strategy": "drafter"},
        {"target_prefix": "w1 w2", "batch": 2},
        {"strategy": "AR", "beam": 2},
        {"strategy": "AR", "precision": "int8"},
    ],
)
def test_pieces_of_any_settings(how: dict[str, object], world: Path) -> None:
    translator = load_translator(make_settings(world, **how))
    lines = ["", *SENTENCES, "w1"]
    results, pieces = grown(translator, lines)
    assert ["".join(piece.text for piece in row) for row in pieces] == [r.text for r in results]
    if how.get("beam") or how.get("precision"):  # no steps are seen
        assert max(map(len, pieces)) == 1


@pytest.mark.parametrize(
    ("how", "steps"),
    [
        ({"batch": 3}, True),
        ({"batch": 3, "strategy": "AR"}, True),
        ({"batch": 3, "path": None}, False),  # a sentence is one step
        ({"batch": 3, "strategy": "drafter"}, True),
        ({"batch": 2, "strategy": "AR", "precision": "int8"}, False),
        ({"batch": 3, "strategy": "AR", "beam": 2}, False),
    ],
)
def test_an_error_of_ours_ends_its_line_alone(
    how: dict[str, object], steps: bool, world: Path
) -> None:
    """Which is decoded no further, where several ``steps`` are seen; the others go on."""
    translator = load_translator(make_settings(world, **how))
    whole = translator.translate_batch(SENTENCES, 1)
    tokens = translator.statistics.committed_tokens
    calls: list[int] = []

    def stop(number: int, piece: Piece) -> None:
        calls.append(number)
        if number in (1, 4):
            raise InferenceError(f"enough of {number}")

    results = translator.translate_batch(SENTENCES, 1, stop)
    for number in (1, 4):
        assert str(results[number]) == f"enough of {number}"
        assert calls.count(number) == 1
        results[number] = whole[number]
    assert results == whole
    if steps:
        assert translator.statistics.committed_tokens < 2 * tokens
    assert translator.translate_batch(SENTENCES, 1) == whole


def test_a_translator_is_not_used_while_it_is_at_work(world: Path) -> None:
    """It would wait for itself."""
    translator = load_translator(make_settings(world))

    def again(_number: int, _piece: Piece) -> None:
        translator.translate_batch(SENTENCES)

    with pytest.raises(RuntimeError, match="on_piece: the translator is at work"):
        translator.translate_batch(SENTENCES, on_piece=again)
    assert all(isinstance(one, Translation) for one in translator.translate_batch(SENTENCES))


@pytest.mark.parametrize("fault", [OSError, IndexError])
def test_an_error_ends_all_lines(fault: type[Exception], world: Path) -> None:
    """A caller that has enough raises one; the next line is decoded as ever."""
    translator = load_translator(make_settings(world))
    taken: list[Piece] = []

    def stop(number: int, piece: Piece) -> None:
        taken.append(piece)
        raise fault("enough")

    (expected,) = translator.translate_batch(SENTENCES[:1])
    assert isinstance(expected, Translation)
    with pytest.raises((fault, RuntimeError), match="enough"):
        translator.translate_batch(SENTENCES, on_piece=stop)
    assert len(taken) == 1
    assert len(taken[0].text) < len(expected.text)
    assert translator.translate_batch(SENTENCES[:1]) == [expected]
