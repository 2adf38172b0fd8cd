"""Lines: of a file or standard input, and of an output that a later run can go on with."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
    target_prefix: str | None = None
    """The beginning of its translation; None is that of the settings."""
    draft: str | None = None
    """A text that its translation may resemble."""


class InputLines:
    """The lines of a binary stream, read one by one, so that typed lines are seen at once.

    Iteration stops at the first fault, which :meth:`check` then raises: the lines before it can be
    translated first.
    """

    def __init__(self, stream: BinaryIO, path: str | None = None) -> None:
        self.path = path
        self.name = path or "standard input"
        self.number = 0
        """Lines read so far."""
        self.typed = stream.isatty()
        self.is_file = path is not None and os.path.isfile(path)
        """True if it can be read again."""
        self.drafts: InputLines | None = None
        """A draft for each line."""
        self._stream = stream
        self._fault = ""

    @classmethod
    @contextmanager
    def open(cls, path: str) -> Iterator[InputLines]:
        """Open a file, or standard input for ``-``."""
        if path == STANDARD:
            yield cls(sys.stdin.buffer)
        else:
            with open(path, "rb") as stream:
                yield cls(stream, path)

    def total(self) -> int | None:
        """Return the number of all lines of a file; None where that cannot be known."""
        if not self.is_file:
            return None
        with open(str(self.path), "rb") as file:
            return sum(1 for _ in file)

    def __iter__(self) -> Iterator[Line]:
        drafts = iter(self.drafts or ())
        try:
            while not self._fault and (line := self._stream.readline()):
                self.number += 1
                text = line.decode("utf-8-sig" if self.number == 1 else "utf-8")
                text = text.removesuffix("\n").removesuffix("\r")
                draft = next(drafts, None)
                if self.drafts is not None and draft is None:
                    missing = f"{self.drafts.name}: has no line {self.number}"
                    self._fault = self.drafts._fault or missing
                    return
                yield Line(self.number, text, draft=None if draft is None else draft.text)
        except UnicodeDecodeError:
            fault = f"line {self.number} is not UTF-8; unpack or convert the file (iconv)"
            self._fault = f"{self.name}: {fault}"
        except OSError as error:
            self._fault = f"{self.name}: cannot be read ({error.strerror or error})"

    def check(self, remedy: str = "") -> None:
        """Raise the fault that ended the input early, if there was one; ``remedy`` is added."""
        if self._fault:
            raise InferenceError(f"{self._fault}{remedy}")


class OutputLines:
    """Lines written at once: after an interruption at most the last one is unfinished.

    Nothing is changed until it is entered as a context.
    """

    def __init__(self, path: str, resume: bool = False, flag: str = "--output-path") -> None:
        """Look at the output; ``-`` is standard output."""
        self.path, self._name = path, f"{flag} {path}"
        self.resumable = path != STANDARD and (os.path.isfile(path) or not os.path.exists(path))
        """True if it is, or will be, an ordinary file."""
        self.done = 0
        """Complete lines of an earlier run, which stay."""
        if resume and not self.resumable:
            raise InferenceError(f"--resume: needs an ordinary file to go on with; give {flag}")
        if resume and os.path.exists(path):
            with open(path, "rb") as file:
                self.done = sum(line.endswith(b"\n") for line in file)

    def __enter__(self) -> OutputLines:
        """Begin to write: after the lines that stay, and over everything else."""
        self._file: IO[bytes]
        if self.path == STANDARD:
            self._file = open(sys.stdout.fileno(), "wb", buffering=0, closefd=False)
        elif self.done:
            with open(self.path, "rb") as file:
                end = sum(map(len, islice(file, self.done)))
            self._file = open(self.path, "r+b", buffering=0)
            self._file.truncate(self._file.seek(end))
        else:
            self._file = open(self.path, "wb", buffering=0)
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
            fault = f"{self._name}: cannot be written to ({error.strerror})"
            if self.resumable:
                self._file.truncate(self._file.tell() - (len(line) - len(rest)))
                fault += "; lines before are kept, go on with --resume"
            raise InferenceError(fault) from error

    def __exit__(self, *exception: object) -> None:
        self._file.close()
