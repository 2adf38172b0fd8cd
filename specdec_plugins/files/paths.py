"""The files of a run, looked at together before any of them is written to."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from specdec_plugins.files.errors import InferenceError, explained
from specdec_plugins.files.input import STANDARD
from specdec_plugins.files.streams import ERROR, OUTPUT

Location = str | os.PathLike[str]
NamedPaths = Iterable[tuple[str, Location | None]]
"""Pairs of what messages call a file, a flag for instance, and its path, if there is one."""


def check_paths(outputs: NamedPaths, inputs: NamedPaths) -> None:
    """See to it that no output is an input of the run, or another output of it.

    Files are told apart by what they are, not by their names: links lead to the same file. What is
    no ordinary file, a terminal or ``/dev/null``, may be several of them. Standard output and error
    count as outputs, which may be one.

    Args:
        outputs, inputs: ``-`` is standard output, or standard input.

    Raises:
        InferenceError: two are the same file.
    """
    taken = {_identity(path): _label(role, path) for role, path in inputs if path is not None}
    streams = (("standard output", OUTPUT), ("standard error", ERROR))
    written = [(name, _identity(descriptor)) for name, descriptor in streams]
    others = [
        named
        for role, path in outputs
        if path is not None and path != STANDARD and _identity(path) is not None
        for named in ((_label(role, path), path), (f"{_label(role, path)}'s lock", lock_path(path)))
    ]
    for group in (written, *([(label, _identity(path))] for label, path in others)):
        for label, identity in group:
            if identity is not None and identity in taken:
                raise InferenceError(
                    f"{label}: is the same file as {taken[identity]}; name another file"
                )
        taken.update((identity, label) for label, identity in group)


def files_below(folder: Path, *patterns: str) -> Iterator[Path]:
    """The files of a folder that match one of the patterns."""
    for pattern in patterns:
        yield from (path for path in folder.glob(pattern) if not path.is_dir())


def check_outside(source: Path, output: Path) -> None:
    """
    Raises:
        InferenceError: the folder of the output would be among the input.
    """
    inside = source.resolve() in (output.resolve(), *output.resolve().parents)
    if inside or (source.is_file() and output.resolve() == source.resolve().parent):
        raise InferenceError(f"--output-path {output}: is with the input; name another folder")


def check_writable(path: str, flag: str) -> None:
    """Learn early whether ``path`` can be written to, and change nothing.

    Raises:
        InferenceError: it cannot.
    """
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    if os.path.isdir(path):
        fault = "is a directory; name a file in it"
    elif not os.path.exists(path) and not os.path.isdir(folder):
        fault = f"there is no folder {folder}; create it"
    elif not os.access(path if os.path.exists(path) else folder, os.W_OK):
        fault = "cannot be written to; check its permissions, or name another file"
    else:
        return
    raise InferenceError(f"{flag} {path}: {fault}")


def lock_path(path: Location) -> str:
    """Return the file beside an output that keeps other runs away from it while one is at work."""
    folder, name = os.path.split(os.path.realpath(path))
    # Names have at most 255 bytes.
    return os.path.join(folder, os.fsdecode(os.fsencode(f".{name}")[:250]) + ".lock")


def _identity(path: Location | int) -> object:
    """Return what two names of one ordinary file have in common; None for what is no ordinary
    file."""
    try:
        status = os.stat(0 if path == STANDARD else path)
    except OSError:
        return None if isinstance(path, int) else os.path.realpath(path)
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def _label(role: str, path: Location) -> str:
    return "standard input" if path == STANDARD else f"{role} {os.fspath(path)}"


def file_digest(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file.

    Raises:
        InferenceError: it cannot be read.
    """
    digest = hashlib.sha256()
    with explained(f"{path}: cannot be read", "check the path"), open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
