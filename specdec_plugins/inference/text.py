"""Lines in and out: bytes to text, text to dictionary ids, and back.

What becomes of unusual lines:

- an empty or blank line gives an empty line, and no model is run for it;
- a line longer than the encoder has positions for is cut to its first tokens, with a warning that
  names the line;
- a word that is not in the dictionary becomes ``<unk>``, and so do words that spell one of its
  special symbols (``<s>``, ``</s>``, ``<pad>``);
- a line ends at a line feed and nowhere else; a carriage return before it and a byte order mark
  at the start of the input are dropped;
- bytes that are no UTF-8 end the run, after all lines before them.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO, Protocol

import torch
from fairseq.data import Dictionary
from fairseq.data.data_utils import post_process
from torch import Tensor

from specdec_plugins.inference.settings import InferenceError

logger = logging.getLogger(__name__)

STANDARD = "-"
BYTE_ORDER_MARK = "\ufeff"


@dataclass(frozen=True)
class Line:
    """A line of the input."""

    number: int
    """From 1."""
    text: str


class InputLines:
    """The lines of a binary stream, read one by one, so that typed lines are seen at once.

    Iteration stops at the first fault, which :meth:`check` then raises: what came before it can be
    dealt with first.
    """

    def __init__(self, stream: BinaryIO, path: str | None = None) -> None:
        self.path = path
        self.name = "standard input" if path is None else path
        """What messages call it."""
        self.number = 0
        """Lines read so far."""
        self._stream = stream
        self._fault: InferenceError | None = None

    @classmethod
    def open(cls, path: str, flag: str = "--input-path") -> InputLines:
        """The lines of a file, or of standard input for ``-``.

        Args:
            flag: what named it, for messages.

        Raises:
            InferenceError: it cannot be opened.
        """
        if path == STANDARD:
            if sys.stdin is None:
                raise InferenceError(f"{flag} -: standard input is closed")
            return cls(sys.stdin.buffer)
        try:
            return cls(open(path, "rb"), path)
        except OSError as error:
            fault = f"cannot be read ({error.strerror}); check the path"
            raise InferenceError(f"{flag} {path}: {fault}") from error

    def __enter__(self) -> InputLines:
        return self

    def __exit__(self, *exception: object) -> None:
        if sys.stdin is None or self._stream is not sys.stdin.buffer:
            self._stream.close()

    @property
    def typed(self) -> bool:
        """Whether somebody sits at the other end."""
        return self._stream.isatty()

    @property
    def is_file(self) -> bool:
        """Whether it can be read again."""
        return self.path is not None and os.path.isfile(self.path)

    def total(self) -> int | None:
        """All lines of a file; None where that cannot be known."""
        if self.path is None or not self.is_file:
            return None
        lines, end = complete_lines(self.path)
        return lines + (end < os.path.getsize(self.path))

    def _read(self) -> bytes:
        try:
            line = self._stream.readline()
        except OSError as error:
            self._fault = InferenceError(f"{self.name}: cannot be read ({error.strerror})")
            return b""
        self.number += bool(line)
        return line

    def __iter__(self) -> Iterator[Line]:
        while self._fault is None and (line := self._read()):
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                self._fault = InferenceError(
                    f"{self.name}: line {self.number} is not UTF-8 ({error.reason} at byte "
                    f"{error.start + 1} of the line); convert the file (iconv)"
                )
                return
            if self.number == 1:
                text = text.removeprefix(BYTE_ORDER_MARK)
            yield Line(self.number, text.removesuffix("\n").removesuffix("\r"))

    def check(self) -> None:
        """
        Raises:
            InferenceError: the input could not be read to its end.
        """
        if self._fault is not None:
            raise self._fault


class Segmenter(Protocol):
    """One of fairseq's tokenizers or BPEs."""

    def encode(self, x: str) -> str:
        """Words, or pieces of them, with blanks between."""
        ...

    def decode(self, x: str) -> str:
        """The text again."""
        ...


class TextCodec:
    """Source text to ids and target ids to text, by a dictionary, a tokenizer and BPE."""

    def __init__(
        self,
        source: Dictionary,
        target: Dictionary,
        longest: int,
        tokenizer: Segmenter | None = None,
        bpe: Segmenter | None = None,
        markers: str | None = None,
        keep_bpe: bool = False,
    ) -> None:
        """
        Args:
            source, target: dictionaries.
            longest: most source tokens, EOS included.
            tokenizer, bpe: fairseq's, or None.
            markers: fairseq's post-processing of the output, before ``bpe`` and ``tokenizer``.
            keep_bpe: put out segmented text as it is.

        Raises:
            ValueError: unknown markers.
        """
        try:
            post_process("", markers)
        except NotImplementedError:
            raise ValueError(f"--post-process {markers}: not known to fairseq") from None
        self.source, self.target, self.longest = source, target, longest
        self.tokenizer, self.bpe = tokenizer, bpe
        self.markers, self.keep_bpe = markers, keep_bpe
        self._special = torch.tensor([source.bos(), source.pad(), source.eos()])
        self._warned = False

    def encode(self, line: Line) -> Tensor | None:
        """``(tokens,)`` ids with EOS at the end; None for a line without words."""
        text = line.text
        if not text.strip():
            return None
        if self.tokenizer is not None:
            text = self.tokenizer.encode(text)
        if self.bpe is not None:
            text = self.bpe.encode(text)
        ids: Tensor = self.source.encode_line(text, add_if_not_exist=False).long()
        words = ids[:-1]
        if len(words) == 0:
            return None
        words[torch.isin(words, self._special)] = self.source.unk()
        if self.bpe is None and not self._warned and bool((words == self.source.unk()).any()):
            self._warned = True
            logger.warning(
                "line %d: holds words that the dictionary lacks; if the text is not segmented yet, "
                "give --tokenizer and --bpe as in training",
                line.number,
            )
        if len(ids) > self.longest:
            logger.warning(
                "line %d: %d tokens are more than the encoder has positions for; cut to the "
                "first %d",
                line.number,
                len(words),
                self.longest - 1,
            )
            ids = torch.cat([words[: self.longest - 1], ids[-1:]])
        return ids

    def decode(self, tokens: Tensor) -> str:
        """The text of a hypothesis."""
        text: str = self.target.string(tokens.cpu(), None if self.keep_bpe else self.markers)
        if not self.keep_bpe:
            if self.bpe is not None:
                text = self.bpe.decode(text)
            if self.tokenizer is not None:
                text = self.tokenizer.decode(text)
        return text


def complete_lines(path: str, most: int | None = None) -> tuple[int, int]:
    """How many lines of a file end in a line feed, and at which byte the last of them ends.

    Args:
        most: lines after so many do not count.

    Raises:
        OSError: the file cannot be read.
    """
    lines = end = 0
    with open(path, "rb") as file:
        for line in islice(file, most):
            if line.endswith(b"\n"):
                lines += 1
                end += len(line)
    return lines, end
