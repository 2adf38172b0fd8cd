"""The cache folder: how a file is kept and read, how much it holds, and how it is emptied."""

from __future__ import annotations

import mmap
import os
import shutil
from contextlib import suppress
from pathlib import Path

from specdec_plugins.files.ownership import check_owner
from specdec_plugins.files.whole_file import whole_file

MOST = 4 * 2**30
"""Bytes that are kept of what was compiled: several pairs, in a few precisions each."""


def keep(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all, that its owner alone may read and write; so are folders
    that are made for it.

    Raises:
        OSError: it cannot be written.
    """
    for folder in reversed(path.parents):
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)
    with whole_file(path) as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(content)


def read_kept(path: Path) -> bytes:
    """Return the content of a file that nobody else can have written: it decides what is put out,
    or is run.

    Raises:
        PermissionError: somebody else can.
        OSError: there is none, or it cannot be read.
    """
    check_owner(path)
    return path.read_bytes()


def map_kept(path: Path) -> mmap.mmap:
    """Map a file that nobody else can have written into memory: what is written to it in there is
    not written to the file.

    Raises:
        PermissionError: somebody else can.
        OSError: there is none, or it cannot be read.
        ValueError: it is empty.
    """
    check_owner(path)
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def size(path: Path) -> int:
    """Bytes of a file, or of all files of a folder; 0 where there is nothing any more."""
    with suppress(FileNotFoundError):
        files = path.rglob("*") if path.is_dir() else [path]
        return sum(file.lstat().st_size for file in files if file.is_file())
    return 0


def trim(folder: Path, most: int = MOST) -> None:
    """Remove entries, files or folders, until the folder holds at most so many bytes: first those
    that were not used for longest, whose time of change is the oldest. The newest one stays.

    What is being written, hidden until it is whole, is left alone. Other processes may remove
    entries at the same time.
    """
    entries = []
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            if not path.name.startswith("."):
                entries.append((path.lstat().st_mtime, path, size(path)))
    entries.sort()
    total = sum(bytes_of for *_, bytes_of in entries)
    for _, path, bytes_of in entries[:-1]:
        if total <= most:
            return
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        total -= bytes_of


def empty(folder: Path) -> None:
    """Remove the folder with all that is in it.

    Raises:
        OSError: something cannot be removed.
    """
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)
