"""The folder of timed runs, kept as they come, and what they are runs of."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

from specdec_plugins.evaluation.runs import Run
from specdec_plugins.files.errors import InferenceError, explained
from specdec_plugins.files.input import complete_lines
from specdec_plugins.files.json_object import JsonObject
from specdec_plugins.files.work_folder import WorkFolder

RUNS = "runs.jsonl"
DESCRIPTION = "experiment.json"


class RunFolder(WorkFolder):
    """A folder in which runs are left; one process at a time has it, from entering to leaving.

    Nothing is written before the first run.
    """

    def __init__(self, path: Path, description: JsonObject) -> None:
        super().__init__(path, path, DESCRIPTION, description)
        self.runs: list[Run] = []
        """The runs that are there, the earliest first."""

    def go_on(self) -> None:
        """Read the runs that are there, and remove the piece of one that a killed process may have
        left.

        Raises:
            InferenceError: they are runs of something else, or of nobody knows what.
        """
        path = self.output / RUNS
        self.runs = read_runs(path) if path.exists() else []
        if self.runs and not self.is_begun():
            raise InferenceError(
                f"--output-path {self.output}: holds a {RUNS}, but no {DESCRIPTION} that says of "
                "what; name another folder"
            )
        if path.exists():
            with explained(f"{path}: cannot be written to", "check its permissions"):
                os.truncate(path, complete_lines(str(path))[1])

    def add(self, run: Run) -> None:
        """Write a run through to the disk.

        Raises:
            InferenceError: it cannot be written.
        """
        fault = f"--output-path {self.output}: cannot be written to"
        with explained(fault, "runs that are there are kept"):
            if not self.runs:
                self.begin()
            with open(self.output / RUNS, "ab") as file:
                file.write(run.to_json() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        self.runs.append(run)


def read_runs(path: Path) -> list[Run]:
    """All complete lines of a file of runs.

    Raises:
        InferenceError: the file cannot be read, or a line is no run.
    """
    runs = []
    with explained(f"{path}: cannot be read", "check its permissions"), open(path, "rb") as file:
        for number, line in enumerate(islice(file, complete_lines(str(path))[0]), start=1):
            try:
                runs.append(Run.from_json(line))
            except ValueError as error:
                raise InferenceError(
                    f"{path}, line {number}: is no run ({error}); remove the line, or name "
                    "another folder"
                ) from error
    return runs
