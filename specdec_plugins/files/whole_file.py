"""Files that are whole from the moment they have their name."""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO


@contextmanager
def whole_file(
    path: str | os.PathLike[str], partial: str | os.PathLike[str] | None = None
) -> Iterator[IO[bytes]]:
    """A file to write to, which takes the place of ``path`` when the block has ended well.

    If the block fails, what was there stays as it was, and nothing is left beside it. A symbolic
    link stays, and what it points to is replaced. A device or a FIFO is written to directly.
    Permissions are those that ``open`` gives: of a file that was there its own, else the umask's.

    Args:
        partial: the folder, on the same file system, that has the file until then, and keeps a part
            of it if the process is killed; the one that it is to be in if None.

    Raises:
        OSError: it cannot be written.
    """
    there = _existing(path)
    if there is not None and not stat.S_ISREG(os.fstat(there.fileno()).st_mode):
        with there:
            yield there
        return
    target = os.path.realpath(path)
    # Short, since the name of the target may be as long as names can be.
    unfinished = os.path.join(partial or os.path.dirname(target), f".{uuid.uuid4().hex}.part")
    try:
        with open(unfinished, "xb") as file:
            if there is not None:
                with there:
                    _give_likeness(file, there)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)
        raise


def _existing(path: str | os.PathLike[str]) -> IO[bytes] | None:
    """Return what is there, opened for writing and not changed; None if there is nothing."""
    try:
        return os.fdopen(os.open(path, os.O_WRONLY), "wb")
    except FileNotFoundError:
        return None


def _give_likeness(file: IO[bytes], other: IO[bytes]) -> None:
    """Give a file the owner, as far as that is allowed, and the permissions of another."""
    status = os.fstat(other.fileno())
    with suppress(PermissionError):
        os.fchown(file.fileno(), status.st_uid, status.st_gid)
    os.fchmod(file.fileno(), stat.S_IMODE(status.st_mode))
