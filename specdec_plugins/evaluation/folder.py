"""The folder of timed runs, kept as they come, and what they are runs of."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Generic, Protocol, TypeVar

from specdec_plugins.evaluation.runs import Run
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.input import complete_lines
from specdec_plugins.files.json_object import JsonObject
from specdec_plugins.files.work_folder import WorkFolder

RUNS = "runs.jsonl"
DESCRIPTION = "sweep.json"


class Record(Protocol):
    """A run that is kept."""

    def to_json(self) -> str:
        """The line of the file, without a line feed."""
        ...


class Dated(Protocol):
    """A run that says when it was made."""

    @property
    def began(self) -> str:
        """Date and time, UTC."""
        ...


R = TypeVar("R", bound=Record)


class RunFolder(WorkFolder, Generic[R]):
    """Where runs are left; one process at a time has it, from entering to leaving.

    Nothing is written before the first run.
    """

    def __init__(
        self, path: Path, name: str, description: JsonObject, read: Callable[[bytes], R]
    ) -> None:
        """
        Args:
            name: of the file that says of what these are runs.
            read: a run from its line; raises ``ValueError`` where it is none.
        """
        super().__init__(path, path, name, description)
        self.runs: list[R] = []
        """Those that are there, the earliest first."""
        self._name, self._read = name, read
        self._runs_file: IO[bytes] | None = None

    def __exit__(self, *exception: object) -> None:
        if self._runs_file is not None:
            self._runs_file.close()
        super().__exit__(*exception)

    def go_on(self) -> None:
        """Read the runs that are there.

        Raises:
            InferenceError: they are runs of something else, or of nobody knows what.
        """
        path = self.output / RUNS
        self.runs = read_lines(path, self._read) if path.exists() else []
        if self.runs and not self.is_begun():
            raise InferenceError(
                f"--output-path {self.output}: holds a {RUNS}, but no {self._name} that says of "
                "what; name another folder"
            )

    def add(self, run: R) -> None:
        """Write a run through to the disk.

        Raises:
            InferenceError: it cannot be written.
        """
        try:
            if self._runs_file is None:
                self._runs_file = self._open()
            self._runs_file.write(run.to_json().encode("utf-8") + b"\n")
            self._runs_file.flush()
            os.fsync(self._runs_file.fileno())
        except OSError as error:
            raise self._fault(error) from error
        self.runs.append(run)

    def _open(self) -> IO[bytes]:
        """The file of runs, without the piece of one that a killed process may have left."""
        path = self.output / RUNS
        if not self.runs:
            self.begin()
        end = complete_lines(str(path))[1] if path.exists() else 0
        if path.exists():
            os.truncate(path, end)
        return open(path, "ab")

    def _fault(self, error: OSError) -> InferenceError:
        return InferenceError(
            f"--output-path {self.output}: cannot be written to ({error.strerror}); runs that are "
            "there are kept"
        )


class SweepFolder(RunFolder[Run]):
    """That of a sweep."""

    def __init__(self, path: Path, description: JsonObject) -> None:
        super().__init__(path, DESCRIPTION, description, Run.from_json)


def provenance(description: JsonObject, runs: Sequence[Dated]) -> JsonObject:
    """Where and when runs were made, and with what: of what their folder says."""
    dates = sorted(run.began for run in runs)
    machine = {name: description[name] for name in ("processor", "cores", "versions")}
    return {**machine, "first_run": dates[0], "last_run": dates[-1]}


def read_lines(path: Path, read: Callable[[bytes], R]) -> list[R]:
    """All complete lines.

    Raises:
        InferenceError: the file cannot be read, or a line is no run.
    """
    runs = []
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(islice(file, complete_lines(str(path))[0]), start=1):
                try:
                    runs.append(read(line))
                except (ValueError, TypeError) as error:
                    raise InferenceError(
                        f"{path}, line {number}: is no run ({error}); remove the line, or name "
                        "another folder"
                    ) from error
    except OSError as error:
        raise InferenceError(
            f"{path}: cannot be read ({error.strerror}); check its permissions"
        ) from error
    return runs
