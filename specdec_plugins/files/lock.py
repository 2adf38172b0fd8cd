"""One run at a time for each output: the others are refused before they change anything.

A lock is a file beside the output, ``.NAME.lock``, or ``.lock`` in a folder that is the output. The
system holds it for the process and gives it back when that ends, however it ends: a lock file that
a killed run has left is in nobody's way, and the next run removes it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from filelock import FileLock, Timeout

from specdec_plugins.files.errors import InferenceError, explained
from specdec_plugins.files.input import STANDARD
from specdec_plugins.files.paths import Location, NamedPaths, check_paths, check_writable, lock_path


class OutputLock:
    """What a run holds of an output, from entering until it is left, or the run is killed."""

    def __init__(self, output: Location, file: Location) -> None:
        """
        Args:
            output: what messages call it.
            file: the lock file. Its folder must be there.
        """
        self._output = output
        self._lock = FileLock(file, timeout=0)

    def __enter__(self) -> OutputLock:
        """
        Raises:
            InferenceError: another run has it.
            OSError: the lock file cannot be written.
        """
        try:
            self._lock.acquire()
        except Timeout as error:
            raise InferenceError(
                f"{os.fspath(self._output)}: another run is at work there; wait for it, or name "
                "another"
            ) from error
        return self

    def __exit__(self, *exception: object) -> None:
        # While it is held: who waits for this file sees that it is gone, and makes another.
        with suppress(OSError):
            os.unlink(self._lock.lock_file)
        self._lock.release()


@contextmanager
def reserved(outputs: NamedPaths, inputs: NamedPaths = ()) -> Iterator[None]:
    """Have all these outputs for this run alone, from before it looks at what is there.

    Standard output, devices and FIFOs may be written to by several.

    Raises:
        InferenceError: one is an input, or another output, or cannot be written to; or another run
            has it.
    """
    check_paths(outputs, inputs)
    with ExitStack() as held:
        for flag, path in outputs:
            if path is not None and path != STANDARD:
                check_writable(os.fspath(path), flag)
                if not os.path.exists(path) or stat.S_ISREG(os.stat(path).st_mode):
                    output = f"{flag} {os.fspath(path)}"
                    remedy = "name a file in another: a lock there keeps other runs away"
                    with explained(f"{output}: its folder cannot be written to", remedy):
                        held.enter_context(OutputLock(output, lock_path(path)))
        yield
