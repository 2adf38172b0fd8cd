"""Lines: of a file or standard input, and of an output that a later run can go on with."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import IO, BinaryIO

from specdec_plugins.files.errors import InferenceError

STANDARD = "-"


@dataclass(frozen=True)
class Line:
    """A line of the input, numbered from 1."""

    number: int
    text: str
    #: The beginning of its translation; None is that of the settings.
    target_prefix: str | None = None
    #: A text that its translation may resemble.
    draft: str | None = None
    #: The largest number of tokens of its translation; None is the settings' rule.
    max_length: int | None = None
    #: The number of this sentence of the line, from 0.
    sentence: int = 0


def without_surrogates(text: str) -> str:
    """Return a text whose pairs of surrogates are characters, and whose lone ones are U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def may_be_file(path: str | os.PathLike[str]) -> bool:
    """Return whether an output is an ordinary file, or will be one."""
    return path != STANDARD and (os.path.isfile(path) or not os.path.exists(path))


def count_lines(path: str) -> int | None:
    """Return the number of lines of a file; None where that cannot be known."""
    if not os.path.isfile(path):
        return None
    with open(path, "rb") as file:
        return sum(1 for _ in file)


class InputLines:
    """The lines of a binary stream, each as soon as it is there, up to the first fault, which
    :meth:`check` raises: the lines before it can be translated first."""

    def __init__(self, stream: BinaryIO, path: str | None = None, number: int = 0) -> None:
        """Begin after ``number`` lines of the file ``path``, or of standard input."""
        self.path = path
        self.number = number
        self.typed = stream.isatty()
        self.drafts: InputLines | None = None
        self._stream = stream
        self._fault = ""
        #: True if the same input may be read another time.
        self._passes = True

    @classmethod
    @contextmanager
    def open(cls, path: str) -> Iterator[InputLines]:
        """Open a file, or standard input for ``-``."""
        if path == STANDARD:
            if sys.stdin is None:
                raise InferenceError("standard input is closed; name a file")
            yield cls(sys.stdin.buffer)
        else:
            with open(path, "rb") as stream:
                yield cls(stream, path)

    def total(self) -> int | None:
        """Return the number of all lines of a file; None where that cannot be known."""
        return None if self.path is None else count_lines(self.path)

    def read(self) -> bytes:
        """Return all of it."""
        return self._stream.read()

    def __iter__(self) -> Iterator[Line]:
        drafts = (line.text for line in self.drafts or ())
        name = self.path or "standard input"
        try:
            for line in iter(self._stream.readline, b""):
                self.number += 1
                text = line.decode("utf-8")
                text = text.removesuffix("\n").removesuffix("\r")
                if self.number == 1:
                    text = text.removeprefix("\ufeff")  # a byte order mark
                draft = next(drafts, None)
                if self.drafts and draft is None:
                    self._fault = self.drafts._fault or f"{self.drafts.path}: no line {self.number}"
                    self._passes = False
                    return
                yield Line(self.number, text, draft=draft)
            # Those beside a file are counted before, and those of a shard go on after it.
            if self.drafts and self.path is None and next(drafts, None) is not None:
                self._fault = f"{self.drafts.path}: has more lines than {name}"
                self._passes = False
        except UnicodeDecodeError:
            self._fault = f"{name}: line {self.number} is not UTF-8; unpack or convert it"
            self._passes = False
        except OSError as error:
            self._fault = f"{name}: cannot be read ({error.strerror or error})"

    def check(self, remedy: str = "") -> None:
        """Raise the fault that ended the input early, if there was one; ``remedy`` is added to one
        that may pass without a change of the input."""
        if self._fault:
            raise InferenceError(self._fault + (remedy if self._passes else ""))


def check_drafts(path: str, source: str) -> None:
    """Refuse a file of drafts that has not a line for each line of a file; of a stream that can
    be read only once, it shows while it is read."""
    drafts = count_lines(path)
    lines = count_lines(source)
    if None not in (drafts, lines) and drafts != lines:
        raise InferenceError(f"--drafts {path}: has {drafts} lines, and {source} has {lines}")


def check_open(output: str) -> None:
    """Refuse standard output if it is closed."""
    if output == STANDARD and sys.stdout is None:
        raise InferenceError("standard output is closed; name a file")


class OutputLines:
    """Lines written at once: after an interruption at most the last one is unfinished."""

    def __init__(self, path: str, resume: bool = False) -> None:
        """Look at the output, which nothing changes yet; ``-`` is standard output."""
        self.path = path
        #: True if it is, or will be, an ordinary file.
        self.resumable = may_be_file(path)
        #: Complete lines of an earlier run, which stay.
        self.done = 0
        check_open(path)
        if resume:
            if not self.resumable:
                raise InferenceError(f"--resume: {path} is no ordinary file to go on with")
            with suppress(FileNotFoundError), open(path, "rb") as file:
                self.done = sum(line.endswith(b"\n") for line in file)

    def keep(self, lines: int) -> None:
        """Let only the first lines stay."""
        self.done = lines

    def __enter__(self) -> OutputLines:
        """Begin to write: after the lines that stay, and over everything else."""
        mode = "wb"
        if self.done:
            mode = "ab"
            with open(self.path, "rb") as before:
                os.truncate(self.path, sum(map(len, islice(before, self.done))))
        out = sys.stdout.fileno() if self.path == STANDARD else self.path
        self._file: IO[bytes] = open(out, mode, 0, closefd=out == self.path)
        return self

    def write(self, text: str) -> None:
        """Write a line through to the system."""
        line = rest = memoryview(f"{text}\n".encode())
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            if isinstance(error, BrokenPipeError) and self.path == STANDARD:
                raise
            fault = f"{self.path}: cannot be written to ({error.strerror})"
            if self.resumable:
                self._file.truncate(self._file.tell() - (len(line) - len(rest)))
                fault += "; lines before are kept, go on with --resume"
            raise InferenceError(fault) from error

    def __exit__(self, *exception: object) -> None:
        self._file.close()
