"""Lines of text into tokens and back, and the streams that they come from and go to."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import make_dictionary

from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.input import InputLines, Line
from specdec_plugins.files.output import OutputLines
from specdec_plugins.inference.text import TextCodec


class Brackets:
    """A tokenizer or BPE whose work can be seen."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def encode(self, text: str) -> str:
        return f"{self.kind} {text}"

    def decode(self, text: str) -> str:
        return f"{self.kind}({text})"


def test_codec_decodes_in_the_reverse_order() -> None:
    dictionary = make_dictionary(1)
    for symbol in ("b@@", "c", "tok", "bpe"):
        dictionary.add_symbol(symbol)
    ids = dictionary.encode_line("b@@ c b@@ <unk>", add_if_not_exist=False)

    def codec(**settings: Any) -> TextCodec:
        return TextCodec(dictionary, dictionary, 64, **settings)

    assert codec(markers="subword_nmt").decode(ids) == "bc b<unk>"
    last = dictionary.encode_line("c b@@", add_if_not_exist=False)
    assert codec(markers="subword_nmt").decode(last) == "c b"
    assert codec(markers="subword_nmt", keep_bpe=True).decode(ids) == "b@@ c b@@ <unk>"
    encoders = {"tokenizer": Brackets("tok"), "bpe": Brackets("bpe")}
    assert codec(**encoders).decode(ids) == "tok(bpe(b@@ c b@@ <unk>))"
    assert codec(**encoders, keep_bpe=True).decode(ids) == "b@@ c b@@ <unk>"
    encoded = codec(**encoders).encode(Line(1, "c"))
    assert encoded is not None
    assert dictionary.string(encoded) == "bpe tok c"
    assert codec(tokenizer=SimpleNamespace(encode=lambda _: " ")).encode(Line(1, "x")) is None
    with pytest.raises(ValueError, match="--post-process nonsense"):
        codec(markers="nonsense")


def test_closed_standard_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InferenceError, match="standard input is closed"):
        InputLines.open("-")
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(InferenceError, match="standard output is closed"):
        OutputLines("-")


def test_input_that_breaks_off() -> None:
    class Broken(io.BytesIO):
        def readline(self, size: int | None = -1) -> bytes:
            line = super().readline()
            if not line:
                raise OSError(5, "Input/output error")
            return line

    lines = InputLines(Broken(b"one\ntwo\n"))
    assert [line.text for line in lines] == ["one", "two"]
    with pytest.raises(InferenceError, match=r"standard input: cannot be read .*Input/output"):
        lines.check()
    assert lines.total() is None
