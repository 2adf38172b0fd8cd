"""Going on with an output that was not finished, in the same way as it was begun.

Beside an output that is being written lies ``OUTPUT.resume``. Its first line says with what it is
made (version, models, settings). A line for each line of the output follows: the digests of the
input's line, of the output's, and of the trace's where there is one, written before the output's
line is. Once the whole input is translated the file is removed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice

from specdec_plugins.files.errors import InferenceError, explained
from specdec_plugins.files.input import InputLines, Line
from specdec_plugins.files.json_object import JsonObject, as_read, differing
from specdec_plugins.files.output import OutputLines, is_resumable
from specdec_plugins.files.paths import check_writable
from specdec_plugins.files.whole_file import whole_file
from specdec_plugins.inference.run_files import describe_settings
from specdec_plugins.inference.settings import Settings

logger = logging.getLogger(__name__)

ENDING = ".resume"
DIGITS = 16
"""Of a digest, hexadecimal."""
SOURCE, OUTPUT, TRACE = range(3)
"""The places of the digests in a line."""


class ResumeFile:
    """The file beside an output, and what it tells of the output that is there.

    Nothing is changed until it is entered as a context.
    """

    def __init__(self, output: OutputLines, settings: Settings, seed: int) -> None:
        """
        Raises:
            InferenceError: it cannot be written, or a file of its name is something else; a model
                cannot be read.
        """
        self.output = output
        self.path = resume_path(output.path)
        self._file: OutputLines | None = None
        self._waiting: deque[str] = deque()
        """Digests of the input's lines that are read and not yet written."""
        self._description: JsonObject = {}
        self._before: JsonObject | None = None
        self._notes: list[str] = []
        if self.path is None:
            return
        check_writable(self.path, "the file for --resume,")
        self._description = as_read(describe_settings(settings, seed))
        self._before, self._notes = self._read(self.path)

    def _read(self, path: str) -> tuple[JsonObject | None, list[str]]:
        """Return what an earlier run left: its description, and its notes on the output's lines."""
        try:
            with open(path, encoding="utf-8") as file:
                before = json.loads(file.readline())
                before["models"]  # of all JSON files, which is this one's own
                return before, [line.rstrip() for line in islice(file, self.output.done)]
        except FileNotFoundError:
            return None, []
        except OSError as error:
            fault = f"cannot be read ({error.strerror}); check its permissions"
        except (ValueError, KeyError, TypeError):
            fault = f"is where {self.output.path} is to be described; move it away"
        raise InferenceError(f"{path}: {fault}")

    @property
    def is_complete(self) -> bool:
        """Whether an earlier run wrote the whole output: nothing is to be written, then."""
        return self.output.done > 0 and self._before is None

    def check(self, lines: InputLines, window: int, trace: OutputLines | None = None) -> list[Line]:
        """Pass over the input lines whose output is there already.

        Args:
            window: lines that are translated together.
            trace: the trace file of the output.

        Returns:
            Those lines of the last window that are there already: its other lines are to be
            translated in the same batches with them.

        Raises:
            InferenceError: the output is not a part of what this run is to write, or was changed;
                the trace is not that of the output.
        """
        done = self.output.done
        kept: deque[Line] = deque(maxlen=done % window)
        number = 0
        changed = None
        for number, line in enumerate(islice(lines, done), start=1):
            if changed is None and not self._is_noted(number, SOURCE, line.text.encode()):
                changed = number
            kept.append(line)
        lines.check()
        if number < done:
            raise self._refusal(f"has {done} lines, {lines.name} only {number}")
        if not done:
            return []
        if self._before is None:
            self._check_complete(lines)
            return []
        if other := differing(self._before, self._description):
            raise self._refusal(f"was begun with other {other}")
        if changed is not None:
            raise self._refusal(f"was begun with another line {changed} of {lines.name}")
        self._check_written(trace)
        return list(kept)

    def _check_written(self, trace: OutputLines | None) -> None:
        """See to it that the lines that are there are those that were written.

        Raises:
            InferenceError: they are not.
        """
        for number, text in enumerate(self.output.kept(), start=1):
            if not self._is_noted(number, OUTPUT, text):
                raise self._refusal(
                    f"has another line {number} than was written there",
                    "remove that line and all after it",
                )
        for number, text in enumerate(trace.kept() if trace else (), start=1):
            if not self._is_noted(number, TRACE, text):
                raise InferenceError(
                    f"--trace {trace and trace.path}: line {number} is not of the run that wrote "
                    f"{self.output.path}; name its trace, or begin anew without --resume"
                )

    def _is_noted(self, number: int, place: int, text: bytes) -> bool:
        """Return whether a line of the input, the output or the trace is as the earlier run had
        it."""
        digests = " ".join(self._notes[number - 1 : number]).split()
        return digests[place : place + 1] == [_digest(text)]

    def _check_complete(self, lines: InputLines) -> None:
        """See to it that an output of which nothing is known has nothing to be added.

        Raises:
            InferenceError: it has.
        """
        more = next(iter(lines), None)
        lines.check()
        if more is not None:
            raise self._refusal(
                f"has {self.output.done} lines, and there is no {self.path} that tells how they "
                "were made",
                "leave out --resume to begin anew",
            )
        logger.warning(
            "--resume: %s has as many lines as %s; nothing is done", self.output.path, lines.name
        )

    def _refusal(self, fault: str, remedy: str = "give what it was begun with") -> InferenceError:
        return InferenceError(
            f"--resume: {self.output.path} {fault}; {remedy}, or give another --output-path"
        )

    def __enter__(self) -> ResumeFile:
        """Describe the run, before its first line; the output is open, and was cut where it has to.

        Raises:
            InferenceError: the file cannot be written.
        """
        if self.path is None:
            return self
        if not self.output.done:
            remedy = "the output needs it beside itself: name another --output-path"
            with (
                explained(f"{self.path}: cannot be written", remedy),
                whole_file(self.path) as file,
            ):
                file.write(json.dumps(self._description).encode() + b"\n")
        lines = OutputLines(self.path, resume=True, most=1 + self.output.done)
        self._file = lines.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file is not None:
            self._file.__exit__()

    def follow(self, lines: Iterable[Line]) -> Iterator[Line]:
        """The lines themselves, which :meth:`note` is to be told of in the same order."""
        for line in lines:
            self._waiting.append(_digest(line.text.encode()))
            yield line

    def note(self, *written: str) -> None:
        """Note what is going to be written for the next line.

        Args:
            written: the line of the output, and that of the trace, if there is one.

        Raises:
            InferenceError: it cannot be noted.
        """
        source = self._waiting.popleft()
        if self._file is not None:
            self._file.write(" ".join([source, *(_digest(text.encode()) for text in written)]))

    def finish(self) -> None:
        """Remove the file: the output is complete."""
        if self.path is not None:
            with suppress(FileNotFoundError):
                os.unlink(self.path)


def resume_path(output: str) -> str | None:
    """Return the file beside an output; None where there is nothing to go on with, as on a
    device."""
    return os.path.realpath(output) + ENDING if is_resumable(output) else None


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:DIGITS]
