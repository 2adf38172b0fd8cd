"""Files that are written whole or not at all, and JSON in them."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

import msgspec

from specdec_plugins.files.errors import explained

Location = str | os.PathLike[str]
JsonObject = dict[str, Any]
"""Settings, figures and the like by name, as JSON has them."""
LARGEST = 2**25
"""Bytes of a JSON file or recipe, at most."""


@contextmanager
def whole_file(path: Location) -> Iterator[IO[bytes]]:
    """Open a file that takes the place of ``path`` when the block has ended well.

    Otherwise everything stays as it was. A symbolic link stays, and its target is replaced; a
    device or a FIFO is written to directly. The permissions are those that ``open`` gives.
    """
    target = os.path.realpath(path)
    mode = os.stat(target).st_mode if os.path.exists(target) else None
    if mode is not None and not stat.S_ISREG(mode):
        with open(path, "wb") as file:
            yield file
        return
    # Short, since the name of the target may be as long as names can be.
    unfinished = os.path.join(os.path.dirname(target), f".{uuid.uuid4().hex}.part")
    try:
        with open(unfinished, "xb") as file:
            if mode is not None:
                os.close(os.open(target, os.O_WRONLY))  # refuses where it may not be written to
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)
        raise


def write_whole(path: Path, chunks: Iterable[bytes]) -> None:
    """Write a whole file, and make its folder."""
    with explained(f"{path}: cannot be written", "name a path that can"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            file.writelines(chunks)


def write_json(path: Path, value: object) -> None:
    """Write a value as JSON, whole or not at all."""
    write_whole(path, [json.dumps(as_read(value), indent=1).encode(), b"\n"])


def read_json(path: Path) -> Any:
    """Return the content of a JSON file."""
    with path.open("rb") as file:
        content = file.read(LARGEST)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: is no JSON of ours ({error})") from error


def as_read(value: object) -> Any:
    """Return a value as it is when read again: tuples are lists, infinite numbers are null."""
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=str))


def differing(first: object, second: object) -> str:
    """Return up to three dotted names at which two descriptions differ; empty if they do not."""
    names = list(_differences(first, second))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(name.removeprefix(".") for name in names[:3]) + more


def _differences(first: object, second: object, name: str = "") -> Iterator[str]:
    if isinstance(first, dict) and isinstance(second, dict):
        for key in first | second:
            yield from _differences(first.get(key), second.get(key), f"{name}.{key}")
    elif first != second:
        yield name


def file_digest(path: Location) -> str:
    """Return the SHA-256 of a file; a file that did not change is read once."""
    with explained(f"{path}: cannot be read", "check the path"):
        status = os.stat(path)
        return _digest(os.fspath(path), status.st_ino, status.st_size, status.st_mtime_ns)


@cache
def _digest(path: str, *status: int) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
