"""The lines of a file or of standard input."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO

from specdec_plugins.files.errors import InferenceError, explained

STANDARD = "-"


BYTE_ORDER_MARK = "\ufeff"


@dataclass(frozen=True)
class Line:
    """A line of the input."""

    number: int
    """The number of the line, from 1."""
    text: str
    target_prefix: str | None = None
    """What its translation is to begin with; None is what the settings say."""


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
        """Return the lines of a file, or of standard input for ``-``.

        Args:
            flag: what named it, for messages.

        Raises:
            InferenceError: it cannot be opened.
        """
        if path == STANDARD:
            if sys.stdin is None:
                raise InferenceError(f"{flag} -: standard input is closed")
            return cls(sys.stdin.buffer)
        with explained(f"{flag} {path}: cannot be read", "check the path"):
            return cls(open(path, "rb"), path)

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

    def check(self, remedy: str = "") -> None:
        """
        Raises:
            InferenceError: the input could not be read to its end; its message ends in ``remedy``.
        """
        if self._fault is not None:
            raise InferenceError(f"{self._fault}{remedy}") from self._fault


def complete_lines(path: str, most: int | None = None) -> tuple[int, int]:
    """Return how many lines of a file end in a line feed, and at which byte the last of them ends.

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
