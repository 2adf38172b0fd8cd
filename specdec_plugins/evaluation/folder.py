"""The folder of a sweep: its runs, kept as they come, and what they are runs of."""

from __future__ import annotations

import fcntl
import json
import os
from itertools import islice
from pathlib import Path
from typing import IO, Any

from specdec_plugins.evaluation.runs import Run
from specdec_plugins.inference.corpus import write_whole
from specdec_plugins.inference.job import differences
from specdec_plugins.inference.settings import InferenceError
from specdec_plugins.inference.text import complete_lines

RUNS = "runs.jsonl"
DESCRIPTION = "sweep.json"
LOCK = ".lock"


class SweepFolder:
    """Where a sweep leaves its runs; one process at a time has it, from entering to leaving."""

    def __init__(self, path: Path, description: dict[str, Any]) -> None:
        self.path = path
        # As it is when read again: tuples are lists, keys are strings.
        self.description = json.loads(json.dumps(description))
        self.runs: list[Run] = []
        """Those that are there, those of earlier sweeps first."""
        self._lock: IO[str] | None = None
        self._file: IO[bytes] | None = None

    def __enter__(self) -> SweepFolder:
        """Begin a sweep, or go on with it. Nothing is written before the first run.

        Raises:
            InferenceError: the folder cannot be written to, or holds something else.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.path / LOCK, "w", encoding="utf-8")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.__exit__()
            raise InferenceError(f"{self.path}: another run is at work there") from error
        except OSError as error:
            raise self._fault(error) from error
        try:
            self._go_on()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        for file in (self._file, self._lock):
            if file is not None:
                file.close()

    def _go_on(self) -> None:
        path = self.path / RUNS
        self.runs = read_runs(path) if path.exists() else []
        if not self.runs:
            return
        try:
            before = json.loads((self.path / DESCRIPTION).read_text("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise InferenceError(
                f"--output-path {self.path}: holds a {RUNS}, but no {DESCRIPTION} that says of "
                "what; name another folder"
            ) from error
        if other := list(differences(before, self.description)):
            more = f" and {len(other) - 3} more" if len(other) > 3 else ""
            raise InferenceError(
                f"--output-path {self.path}: was begun with other {', '.join(other[:3])}{more}; "
                "give what it was begun with, or another folder"
            )

    def add(self, run: Run) -> None:
        """Write a run through to the disk.

        Raises:
            InferenceError: it cannot be written.
        """
        try:
            if self._file is None:
                self._file = self._open()
            self._file.write(run.to_json().encode("utf-8") + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._fault(error) from error
        self.runs.append(run)

    def _open(self) -> IO[bytes]:
        """The file of runs, without the piece of one that a killed process may have left."""
        path = self.path / RUNS
        if not self.runs:
            text = json.dumps(self.description, indent=1, ensure_ascii=False)
            write_whole(self.path / DESCRIPTION, [text.encode("utf-8"), b"\n"])
        end = complete_lines(str(path))[1] if path.exists() else 0
        if path.exists():
            os.truncate(path, end)
        return open(path, "ab")

    def _fault(self, error: OSError) -> InferenceError:
        return InferenceError(
            f"--output-path {self.path}: cannot be written to ({error.strerror}); runs that are "
            "there are kept"
        )


def read_runs(path: Path) -> list[Run]:
    """All complete lines.

    Raises:
        InferenceError: the file cannot be read, or a line is no run.
    """
    runs = []
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(islice(file, complete_lines(str(path))[0]), start=1):
                try:
                    runs.append(Run.from_json(line))
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
