"""Lines of text into tokens and back, and the streams that they come from and go to."""

from __future__ import annotations

import io
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from conftest import make_dictionary
from fairseq.data import Dictionary, encoders
from fairseq.tasks.translation import TranslationTask
from fairseq_cli.interactive import buffered_read

from specdec_plugins.checkpoints.multilingual import LanguageTokens
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.lines import InputLines, Line
from specdec_plugins.inference.text import Segmenters, TextCodec

CONTROLS = [chr(code) for code in (*range(10), 11, 12, *range(14, 32), *range(127, 160))]
"""Control characters that end no line."""
SPACES = "\t\x0b\x0c\x1f\x85\xa0\u2003\u2028\u3000"
"""Nine characters that Python strips from the ends of a line."""


@pytest.mark.parametrize("replace_eos", [False, True])
@pytest.mark.parametrize("after_eos", [False, True])
def test_languages_are_in_the_tokens_and_not_in_the_text(
    replace_eos: bool, after_eos: bool
) -> None:
    dictionary = make_dictionary(3)
    en, de = (dictionary.add_symbol(f"__{language}__") for language in ("en", "de"))
    tokens = LanguageTokens(en, de, replace_eos, after_eos)
    codec = TextCodec(dictionary, dictionary, 4, tokens=tokens)
    ids = codec.encode(Line(1, "w0 w1 w2 w0"))
    # Cut to four tokens, EOS and the language among them.
    assert ids is not None
    before = [4, 5, 6, en] if replace_eos else [en, 4, 5, 2]
    assert ids.tolist() == ([4, 5, 2, en] if after_eos else before)
    forced = [] if replace_eos else [de]
    for text, expected in (
        (None, forced),
        ("w2", [*forced, 6]),
        ("__de__ w2", [de, 6]),  # named as well
        ("__en__", [*forced, en]),
    ):
        assert codec.encode_prefix(text).tolist() == expected
    assert codec.decode(torch.tensor([de, 4, 5, de, 6, 2])) == "w0 w1 w2"


def test_codec_decodes_in_the_reverse_order() -> None:
    dictionary = make_dictionary(1)
    for symbol in ("b@@", "c", "tok", "bpe"):
        dictionary.add_symbol(symbol)
    ids = dictionary.encode_line("b@@ c b@@ <unk>", add_if_not_exist=False)

    def codec(*parts: Any, markers: str | None = None) -> TextCodec:
        return TextCodec(dictionary, dictionary, 64, Segmenters(parts, parts[::-1], markers))

    assert codec(markers="subword_nmt").decode(ids) == "bc b<unk>"
    last = dictionary.encode_line("c b@@", add_if_not_exist=False)
    assert codec(markers="subword_nmt").decode(last) == "c b"
    assert codec().decode(ids) == "b@@ c b@@ <unk>"
    both: Any = [
        SimpleNamespace(encode=f"{kind} {{}}".format, decode=f"{kind}({{}})".format)
        for kind in ("tok", "bpe")
    ]
    assert codec(*both).decode(ids) == "tok(bpe(b@@ c b@@ <unk>))"
    encoded = codec(*both).encode(Line(1, "c"))
    assert dictionary.string(encoded) == "bpe tok c"
    bpe: Any = SimpleNamespace(decode=lambda text: f"{text}\r\nb\nc")
    assert codec(bpe).decode(dictionary.encode_line("w0")) == "w0 b c"
    nothing: Any = SimpleNamespace(encode=lambda _: " ")
    assert codec(nothing).encode(Line(1, "x")) is None


def test_input_that_breaks_off() -> None:
    broken = MagicMock(io.BytesIO)
    broken.readline.side_effect = [b"one\n", b"two\n", OSError(5)]
    lines = InputLines(broken)
    assert [line.text for line in lines] == ["one", "two"]
    with pytest.raises(InferenceError):
        lines.check()


@pytest.fixture
def codec(tmp_path: Path) -> TextCodec:
    """Words of the letters a, b and c, cut by codes that join a few of them."""
    (tmp_path / "codes").write_text("#version: 0.2\na b\nab c</w>\nc a</w>\nb b\n")
    options = Namespace(bpe="subword_nmt", bpe_codes=str(tmp_path / "codes"), bpe_separator="@@")
    dictionary = Dictionary()
    for piece in ("a", "b", "c", "ab", "abc", "ca", "bb"):
        dictionary.add_symbol(piece)
        dictionary.add_symbol(f"{piece}@@")
    return TextCodec(dictionary, dictionary, 8, Segmenters([encoders.build_bpe(options)]))


def test_the_first_unknown_symbol_is_named(codec: TextCodec) -> None:
    told = codec.unknown_word(Line(2, "abc \u2603 \u2604"))
    assert told == "line 2: the dictionary lacks \u2603, so the model reads <unk>"


def read_by_fairseq(codec: TextCodec, path: Path) -> list[list[int]]:
    """The source tokens of each line of a file, as ``fairseq-interactive`` reads it."""
    lines = [line for part in buffered_read(str(path), 3) for line in part]
    task = SimpleNamespace(source_dictionary=codec.source)
    read = TranslationTask.get_interactive_tokens_and_lengths
    tokens, _ = read(task, lines, codec.segment)
    return [ids.tolist() for ids in tokens]


def read_by_us(codec: TextCodec, path: Path) -> list[list[int]]:
    with InputLines.open(str(path)) as lines:
        return [codec.encode(line).tolist() for line in lines]  # type: ignore[union-attr]


def test_a_line_is_read_as_fairseq_reads_it(codec: TextCodec, tmp_path: Path) -> None:
    texts = [f"{one}abca bb{other}" for one in SPACES for other in ("", *SPACES)]
    texts += [f"abca bb{space}" for space in SPACES]
    texts += [f"ab{control}ca bb" for control in CONTROLS]
    texts += [f"ab {control} ca bb" for control in (*CONTROLS, *SPACES)]
    (path := tmp_path / "in").write_bytes("".join(f"{text}\n" for text in texts).encode())
    expected = read_by_fairseq(codec, path)
    assert len(expected) == len(texts)
    assert read_by_us(codec, path) == expected
    assert [codec.encode(Line(1, text)).tolist() for text in texts] == expected


def test_a_carriage_return_within_a_line_is_a_blank(codec: TextCodec, tmp_path: Path) -> None:
    """Where fairseq's command begins another line, and all that follow have another number."""
    returns, plain = tmp_path / "returns", tmp_path / "plain"
    returns.write_bytes(b"abca\r bb\r\nabc\r\n")
    plain.write_bytes(b"abca bb\nabc\n")
    assert len(read_by_fairseq(codec, returns)) == 3
    assert read_by_us(codec, returns) == read_by_fairseq(codec, plain)
