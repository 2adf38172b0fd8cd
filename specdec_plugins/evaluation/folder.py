"""The folder of timed runs, kept as they come, and what they are runs of."""

from __future__ import annotations

import os
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

from specdec_plugins.evaluation.runs import Run
from specdec_plugins.files.errors import InferenceError, explained
from specdec_plugins.files.lines import complete_lines
from specdec_plugins.files.lock import work_folder
from specdec_plugins.files.output import JsonObject, as_read

RUNS = "runs.jsonl"
DESCRIPTION = "experiment.json"


class RunFolder:
    """A folder in which runs are left; one process at a time has it, from entering to leaving."""

    def __init__(self, path: Path, description: JsonObject) -> None:
        self.output, self.description = path, as_read(description)
        self.runs: list[Run] = []
        """The runs that are there, the earliest first."""
        self._stack = ExitStack()

    def __enter__(self) -> RunFolder:
        """Read the runs that are there, and remove the piece of one that a kill may have left.

        Raises:
            InferenceError: they are runs of something else.
        """
        with ExitStack() as stack:
            mark, path = self.output / DESCRIPTION, self.output / RUNS
            stack.enter_context(work_folder(self.output, mark, self.description))
            self.runs = read_runs(path) if path.exists() else []
            if path.exists():
                with explained(f"{path}: cannot be written to", "check its permissions"):
                    os.truncate(path, complete_lines(str(path))[1])
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def add(self, run: Run) -> None:
        """Write a run through to the disk.

        Raises:
            InferenceError: it cannot be written.
        """
        fault = f"--output-path {self.output}: cannot be written to"
        with (
            explained(fault, "runs that are there are kept"),
            open(self.output / RUNS, "ab") as file,
        ):
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
