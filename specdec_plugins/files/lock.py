"""Outputs: never an input, never another run's, and never a folder that holds something else."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from specdec_plugins.files.errors import InferenceError, explained
from specdec_plugins.files.lines import STANDARD
from specdec_plugins.files.output import (
    JsonObject,
    Location,
    as_read,
    differing,
    read_json,
    write_json,
)

LOCK = ".lock"
NamedPaths = Iterable[tuple[str, Location | None]]
"""Pairs of a file's name in messages, a flag for instance, and its path, if there is one."""


def check_paths(outputs: NamedPaths, inputs: NamedPaths) -> None:
    """Refuse an output that is an input, or another output, by whatever name.

    Only ordinary files count: a terminal or ``/dev/null`` may be several of them. Standard output
    may be several outputs.
    """
    taken = {_identity(path): f"{name} {path}" for name, path in inputs if path is not None}
    for name, path in outputs:
        identity = None if path is None else _identity(path, 1)
        if identity is not None and identity in taken:
            raise InferenceError(f"{name} {path}: is the same file as {taken[identity]}")
        if path != STANDARD:
            taken[identity] = f"{name} {path}"


def _identity(path: Location, stream: int = 0) -> object:
    """Return a value that all names of an ordinary file share; None for anything else."""
    try:
        status = os.stat(stream if path == STANDARD else path)
    except OSError:
        return os.path.realpath(path)
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


@contextmanager
def locked(output: Location, file: Location) -> Iterator[None]:
    """Have an output for this run alone; its lock ``file`` is free when the process ends."""
    lock = FileLock(file, timeout=0)
    with explained(f"{os.fspath(output)}: its folder cannot be written to"):
        os.stat(os.path.dirname(file))  # which the lock would make
        try:
            lock.acquire()
        except Timeout as error:
            raise InferenceError(f"{os.fspath(output)}: another run is at work there") from error
    try:
        yield
    finally:
        os.unlink(file)  # while it is held: a run that waits sees that it is gone
        lock.release()


@contextmanager
def reserved(outputs: NamedPaths, inputs: NamedPaths = ()) -> Iterator[None]:
    """Have outputs for this run alone, from before it looks at them.

    Standard output, devices and FIFOs may be written to by several.
    """
    outputs = list(outputs)
    check_paths(outputs, inputs)
    with ExitStack() as stack:
        for flag, path in outputs:
            if path is None or path == STANDARD:
                continue
            if os.path.isdir(path):
                raise InferenceError(f"{flag} {os.fspath(path)}: is a folder; name a file in it")
            if os.path.isfile(path) or not os.path.exists(path):
                folder, name = os.path.split(os.path.realpath(path))
                lock = os.path.join(folder, f".{name}{LOCK}")
                stack.enter_context(locked(f"{flag} {os.fspath(path)}", lock))
        yield


@contextmanager
def work_folder(
    output: Path, mark: Path, about: JsonObject, flag: str = "--output-path"
) -> Iterator[None]:
    """Have a folder for this run alone: a new one, or one that the same run has begun.

    Args:
        mark: the file in it, or in a folder in it, that describes the run.
        about: this run's description.
    """
    fault = f"{flag} {output}"
    with explained(f"{fault}: cannot be written to", "name a folder that can"):
        mark.parent.mkdir(parents=True, exist_ok=True)
    with locked(fault, mark.parent / LOCK):
        contents = {*output.iterdir()} - {mark.parent} | {*mark.parent.iterdir()}
        try:
            if not contents - {mark, mark.parent / LOCK}:
                write_json(mark, about)
            before = read_json(mark)
        except (FileNotFoundError, ValueError) as error:
            raise InferenceError(f"{fault}: holds something else; name a new folder") from error
        if other := differing(before, as_read(about)):
            raise InferenceError(f"{fault}: was begun with other {other}; name another folder")
        yield
