"""Outputs that are valid whenever the run ends: whole files, and lines to be gone on with."""

from __future__ import annotations

import io
import json
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from itertools import islice
from pathlib import Path

from specdec_plugins.files.errors import InferenceError, explained
from specdec_plugins.files.input import STANDARD, complete_lines
from specdec_plugins.files.json_object import plain
from specdec_plugins.files.paths import check_writable
from specdec_plugins.files.whole_file import whole_file


def write_whole(
    path: Path, chunks: Iterable[bytes], partial: Path | None = None, flag: str | None = None
) -> None:
    """Write a file that is complete from the moment it has its name.

    Args:
        flag: what names it on the command line, if anything does.
        partial: as in :func:`whole_file`. This folder and that of the file are made.

    Raises:
        InferenceError: it cannot be written.
    """
    name = path if flag is None else f"{flag} {path}"
    with explained(f"{name}: cannot be written", "name a path that can"):
        for folder in (path.parent, partial or path.parent):
            folder.mkdir(parents=True, exist_ok=True)
        with whole_file(path, partial) as file:
            file.writelines(chunks)


def write_json(path: Path, value: object, flag: str | None = None) -> None:
    """Write a value as JSON, whole or not at all; ``flag`` names it on the command line.

    Raises:
        InferenceError: it cannot be written.
    """
    write_whole(path, [json.dumps(plain(value), indent=1).encode(), b"\n"], flag=flag)


def is_resumable(path: str) -> bool:
    """Return whether an output is, or will be, an ordinary file."""
    return path != STANDARD and (os.path.isfile(path) or not os.path.exists(path))


class OutputLines:
    """Lines written at once: after an interruption at most the last one is unfinished.

    Nothing is changed until it is entered as a context.
    """

    def __init__(
        self,
        path: str,
        resume: bool = False,
        flag: str = "--output-path",
        most: int | None = None,
    ) -> None:
        """
        Args:
            path: may be ``-``, standard output.
            resume: keep the complete lines that are there already.
            flag: what messages call it.
            most: lines to keep at most.

        Raises:
            InferenceError: the file cannot be written to, or not be resumed.
        """
        self.path = path
        self._flag = flag
        self.done = 0
        """Complete lines that are there already and stay."""
        self._keep = 0
        self._file: io.FileIO | None = None
        if path == STANDARD:
            if resume:
                raise InferenceError(f"--resume: needs a file to go on with; give {flag}")
            if sys.stdout is None:
                raise InferenceError(f"{flag} -: standard output is closed")
            return
        check_writable(path, flag)
        if resume and os.path.exists(path):
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise InferenceError(f"--resume: {path} is no ordinary file to go on with")
            with explained(f"--resume: {path}: cannot be read", "check its permissions"):
                self.done, self._keep = complete_lines(path, most)

    @property
    def resumable(self) -> bool:
        """Whether it is an ordinary file."""
        return is_resumable(self.path)

    def kept(self) -> Iterator[bytes]:
        """The lines that stay, each without its line feed.

        Raises:
            InferenceError: the file cannot be read.
        """
        fault = f"--resume: {self.path}: cannot be read"
        with explained(fault, "check its permissions"), open(self.path, "rb") as file:
            yield from (line[:-1] for line in islice(file, self.done))

    def __enter__(self) -> OutputLines:
        """Begin to write: after the complete lines that stay, and over everything else.

        Raises:
            InferenceError: the file cannot be opened.
        """
        with self._explained():
            if self.path == STANDARD:
                self._file = io.FileIO(sys.stdout.fileno(), "w", closefd=False)
            elif self.done:
                self._file = io.FileIO(self.path, "r+")
                self._file.truncate(self._keep)
                self._file.seek(self._keep)
            else:
                self._file = io.FileIO(self.path, "w")
        return self

    def write(self, text: str) -> None:
        """Write a line through to the system, whole or not at all.

        Raises:
            BrokenPipeError: nobody reads standard output any more.
            InferenceError: it cannot be written (no space, …).
        """
        assert self._file is not None
        line = memoryview((text + "\n").encode("utf-8"))
        rest = line
        with self._explained():
            try:
                while rest:
                    rest = rest[self._file.write(rest) :]
            except OSError:
                if self.resumable:
                    with suppress(OSError):
                        self._file.seek(len(rest) - len(line), os.SEEK_CUR)
                        self._file.truncate()
                raise

    def __exit__(self, *exception: object) -> None:
        if self._file is not None:
            self._file.close()

    def _explained(self) -> AbstractContextManager[None]:
        remedy = "" if self.path == STANDARD else "lines before are kept, go on with --resume"
        return explained(f"{self._flag} {self.path}: cannot be written to", remedy)
