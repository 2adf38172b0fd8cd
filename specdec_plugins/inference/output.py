"""An output of one line a sentence that is valid whenever the run ends, and can be gone on with."""

from __future__ import annotations

import io
import os
import stat
import sys

from specdec_plugins.inference.settings import InferenceError
from specdec_plugins.inference.text import STANDARD, InputLines, complete_lines


def check_writable(path: str, flag: str) -> None:
    """Learn early whether ``path`` can be written to, and change nothing.

    Raises:
        InferenceError: it cannot.
    """
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path):
        fault = "is a directory; name a file in it"
    elif not os.path.isdir(folder):
        fault = f"there is no folder {folder}; create it"
    elif not os.access(path if os.path.exists(path) else folder, os.W_OK):
        fault = "cannot be written to; check its permissions, or name another file"
    else:
        return
    raise InferenceError(f"{flag} {path}: {fault}")


def check_apart(path: str, flag: str, other: str | None, role: str) -> None:
    """See to it that ``path`` is not the file ``other``, which is the run's ``role``.

    Raises:
        InferenceError: it is.
    """
    if other is None:
        return
    if os.path.exists(path) and os.path.exists(other):
        same = os.path.isfile(path) and os.path.samefile(path, other)
    else:
        same = os.path.realpath(path) == os.path.realpath(other)
    if same:
        raise InferenceError(f"{flag} {path}: is the {role} file; name another")


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
            try:
                self.done, self._keep = complete_lines(path, most)
            except OSError as error:
                fault = f"cannot be read ({error.strerror}); check its permissions"
                raise InferenceError(f"--resume: {path}: {fault}") from error

    def check_input(self, lines: InputLines) -> None:
        """Pass over the input lines whose output is there already.

        Raises:
            InferenceError: this is no output for that input.
        """
        check_apart(self.path, self._flag, lines.path, "input")
        there = lines.skip(self.done)
        lines.check()
        if there < self.done:
            raise InferenceError(
                f"--resume: {self.path} has {self.done} lines, {lines.name} only {there}: it is "
                "not the output of this input; remove it, or give another --output-path"
            )

    def __enter__(self) -> OutputLines:
        """Begin to write: after the complete lines that stay, and over everything else.

        Raises:
            InferenceError: the file cannot be opened.
        """
        try:
            if self.path == STANDARD:
                self._file = io.FileIO(sys.stdout.fileno(), "w", closefd=False)
            elif self.done:
                self._file = io.FileIO(self.path, "r+")
                self._file.truncate(self._keep)
                self._file.seek(self._keep)
            else:
                self._file = io.FileIO(self.path, "w")
        except OSError as error:
            raise self._fault(error) from error
        return self

    def write(self, text: str) -> None:
        """Write a line through to the system.

        Raises:
            BrokenPipeError: nobody reads standard output any more.
            InferenceError: it cannot be written (no space, …).
        """
        assert self._file is not None
        rest = memoryview((text + "\n").encode("utf-8"))
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except BrokenPipeError:
            raise
        except OSError as error:
            raise self._fault(error) from error

    def __exit__(self, *exception: object) -> None:
        if self._file is not None:
            self._file.close()

    def _fault(self, error: OSError) -> InferenceError:
        return InferenceError(
            f"{self._flag} {self.path}: cannot be written to ({error.strerror}); lines before "
            "are kept, go on with --resume"
        )
