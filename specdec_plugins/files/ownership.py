"""Files that nobody else can have written."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

REMEDY = "make it yours alone (chown, chmod go-w)"


def check_owner(path: str | os.PathLike[str]) -> None:
    """See to it that only this user, or the machine's administrator, can have written a file or
    folder or put it where it is.

    As OpenSSH does (``safe_path`` in its ``misc.c``), it looks at owner and mode, and at those of
    the folders above, up to the home directory. Unlike there others may write to a folder where
    only the owner of a file may replace it, such as ``/tmp``.

    Raises:
        PermissionError: somebody else can; it names the file or folder, and the remedy.
        OSError: there is nothing, or it cannot be looked at.
    """
    real = Path(os.path.realpath(path))
    home = Path(os.path.realpath(os.path.expanduser("~")))
    for part in (real, *real.parents):
        status = part.stat()
        shared = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        if status.st_uid not in (0, os.getuid()):
            raise PermissionError(errno.EPERM, f"it is another user's; {REMEDY}", str(part))
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not shared:
            raise PermissionError(errno.EPERM, f"others may write to it; {REMEDY}", str(part))
        if part == home:
            return
