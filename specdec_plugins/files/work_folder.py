"""A folder that one run at a time works in, and that the same run may go on with later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from specdec_plugins.files.errors import InferenceError, explained
from specdec_plugins.files.json_object import JsonObject, as_read, differing
from specdec_plugins.files.lock import OutputLock
from specdec_plugins.files.output import write_json

LOCK = ".lock"
Own = TypeVar("Own", bound="WorkFolder")


class WorkFolder:
    """One run at a time has it: from entering until it is left, or the run is killed.

    A file in it describes what it is made of. A run that another description belongs to is refused.
    """

    def __init__(
        self,
        output: Path,
        folder: Path,
        name: str,
        description: JsonObject,
        flag: str = "--output-path",
    ) -> None:
        """
        Args:
            output: what ``flag`` named.
            folder: the output itself, or a folder in it.
            name: of the file that describes it.
            flag: what messages call the output.
        """
        self.output, self.flag = output, flag
        self.description = as_read(description)
        self._file = folder / name
        self._lock = OutputLock(output, folder / LOCK)

    def __enter__(self: Own) -> Own:
        """
        Raises:
            InferenceError: the folder cannot be written to, or holds something else.
        """
        fault = f"{self.flag} {self.output}: cannot be written to"
        with explained(fault, "name a folder that can"):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._lock.__enter__()
        try:
            self.go_on()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._lock.__exit__()

    def go_on(self) -> None:
        """Begin, or go on with what an earlier run left, once nobody else can change it.

        Raises:
            InferenceError: it is something else.
        """
        if not self.is_begun():
            self.begin()

    def is_begun(self) -> bool:
        """Return whether the folder is described: as this run describes it, then.

        Raises:
            InferenceError: it is described otherwise, or that cannot be read.
        """
        if not self._file.exists():
            return False
        try:
            with explained(f"{self._file}: cannot be read", "check its permissions"):
                before = json.loads(self._file.read_bytes())
        except (ValueError, RecursionError):
            return False
        if not isinstance(before, dict):
            return False
        if other := differing(before, self.description):
            raise InferenceError(
                f"{self.flag} {self.output}: was begun with other {other}; give what it was "
                "begun with, or another folder"
            )
        return True

    def begin(self) -> None:
        """Describe the folder, before there is anything that a later run could go on with.

        Raises:
            InferenceError: the description cannot be written.
        """
        write_json(self._file, self.description)
