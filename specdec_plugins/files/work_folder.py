"""A folder that one run at a time works in, and that the same run may go on with later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.json_object import JsonObject, as_read, differing
from specdec_plugins.files.lock import OutputLock
from specdec_plugins.files.output import write_whole

LOCK = ".lock"
Own = TypeVar("Own", bound="WorkFolder")


class WorkFolder:
    """One run at a time has it: from entering until it is left, or the run is killed.

    A file in it describes what it is made of. A run that another description belongs to is refused.
    """

    flag = "--output-path"
    """What named the folder, for messages."""

    def __init__(self, output: Path, folder: Path, name: str, description: JsonObject) -> None:
        """
        Args:
            output: what ``flag`` named.
            folder: the output itself, or a folder in it.
            name: of the file that describes it.
        """
        self.output = output
        self.description = as_read(description)
        self._file = folder / name
        self._lock = OutputLock(output, folder / LOCK)

    def __enter__(self: Own) -> Own:
        """
        Raises:
            InferenceError: the folder cannot be written to, or holds something else.
        """
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._lock.__enter__()
        except OSError as error:
            fault = f"cannot be written to ({error.strerror}); name a folder that can"
            raise InferenceError(f"{self.flag} {self.output}: {fault}") from error
        try:
            self.go_on()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._lock.__exit__()

    def go_on(self) -> None:
        """Look at what an earlier run left, once nobody else can change it.

        Raises:
            InferenceError: it is something else.
        """
        raise NotImplementedError

    def is_begun(self) -> bool:
        """Return whether the folder is described: as this run describes it, then.

        Raises:
            InferenceError: it is described otherwise, or that cannot be read.
        """
        try:
            before = json.loads(self._file.read_bytes())
        except FileNotFoundError:
            return False
        except OSError as error:
            fault = f"cannot be read ({error.strerror}); check its permissions"
            raise InferenceError(f"{self._file}: {fault}") from error
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
        text = json.dumps(self.description, indent=1, ensure_ascii=False)
        write_whole(self._file, [text.encode("utf-8"), b"\n"])
