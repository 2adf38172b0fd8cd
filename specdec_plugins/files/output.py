"""Outputs: whole or not written at all, never an input, never another run's."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

import msgspec
from filelock import AcquireReturnProxy, FileLock, SoftFileLock, Timeout

from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.lines import STANDARD, may_be_file

Location = str | os.PathLike[str]
JsonObject = dict[str, Any]
#: Pairs of a file's name in messages, a flag for instance, and its path, if there is one.
NamedPaths = Iterable[tuple[str, Location | None]]
LOCK = ".lock"
#: Names of files that :func:`whole_file` has not finished.
UNFINISHED = f".{'[0-9a-f]' * 32}.part"


@contextmanager
def whole_file(path: Location) -> Iterator[IO[bytes]]:
    """Open a file that takes the place of ``path`` when the block has ended well.

    Otherwise everything stays as it was. A symbolic link stays, and its target is replaced; a
    device or a FIFO is written to directly. The permissions are those that ``open`` gives.
    """
    target = os.path.realpath(path)
    # Short, since the name of the target may be as long as names can be.
    name = f".{uuid.uuid4().hex}.part"
    unfinished = os.path.join(os.path.dirname(target), name)
    try:
        if os.path.exists(target) and not os.path.isfile(target):
            with open(path, "wb") as file:
                yield file
            return
        with open(unfinished, "xb") as file:
            if os.path.exists(target):
                os.close(os.open(target, os.O_WRONLY))  # refuses where it may not be written to
                shutil.copymode(target, unfinished)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, target)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(unfinished)
        if isinstance(error, OSError) and error.filename in (None, unfinished):
            error.filename = os.fspath(path)
        raise


def write_whole(path: Path, chunks: Iterable[bytes]) -> None:
    """Write a whole file, and make its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        file.writelines(chunks)


def write_json(path: Path, value: object) -> None:
    """Write a value as JSON, whole or not at all."""
    encoded = msgspec.json.encode(value, enc_hook=str)
    write_whole(path, [msgspec.json.format(encoded), b"\n"])


def as_read(value: object) -> Any:
    """Return a value as it is when read again: tuples are lists, infinite numbers are null."""
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=str))


def differing(first: object, second: object, name: str = "") -> str:
    """Return the dotted names at which two descriptions differ; empty if they do not."""
    if isinstance(first, dict) and isinstance(second, dict):
        names = (differing(first.get(k), second.get(k), f"{name}.{k}") for k in first | second)
        return ", ".join(filter(None, names))
    return name.removeprefix(".") if first != second else ""


def file_digest(path: Location) -> str:
    """Return the SHA-256 of a file; a file that did not change is read once."""
    status = os.stat(path)
    return _digest(os.fspath(path), status.st_ino, status.st_size, status.st_mtime_ns)


@cache
def _digest(path: str, *_: int) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def check_paths(outputs: NamedPaths, inputs: NamedPaths) -> None:
    """Refuse an output that is an input, or another output, by whatever name; only ordinary files
    count: a terminal or ``/dev/null`` may be several outputs."""
    taken = {_identity(path): f"{name} {path}" for name, path in inputs if path is not None}
    for name, path in outputs:
        if path is None:
            continue
        if not path:
            raise InferenceError(f"{name}: names no file")
        identity = _identity(path, 1)
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


def _lock(file: Location) -> AcquireReturnProxy:
    """Take a lock: the system's, or by the file itself where its file system has none."""
    try:
        # Its own way to fall back, of ENOSYS alone, removes the file of a run that holds it.
        return FileLock(file, timeout=0, fallback_to_soft=False).acquire()
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
            raise
    if not os.path.getsize(file):  # of the try; another run's says which process it is
        os.unlink(file)
    return SoftFileLock(file, timeout=0).acquire()


@contextmanager
def locked(output: str, file: Location) -> Iterator[None]:
    """Have an output for this run alone; its lock ``file`` is free when the process ends."""
    os.stat(os.path.dirname(file))  # which the lock would make
    with ExitStack() as stack:
        try:
            stack.enter_context(_lock(file))
        except Timeout as error:
            raise InferenceError(f"{output}: another run is at work there") from error
        stack.callback(os.unlink, file)  # while it is held: a run that waits sees that it is gone
        yield


@contextmanager
def reserved(outputs: NamedPaths, inputs: NamedPaths = ()) -> Iterator[None]:
    """Have outputs for this run alone, from before it looks at them."""
    named = [(flag, path) for flag, path in outputs if path is not None]
    check_paths(named, inputs)
    with ExitStack() as stack:
        for flag, path in named:
            if os.path.isdir(path):
                raise InferenceError(f"{flag} {path}: is a folder; name a file in it")
            if may_be_file(path):
                folder, name = os.path.split(os.path.realpath(path))
                stack.enter_context(locked(f"{flag} {path}", f"{folder}/.{name}{LOCK}"))
        yield


@contextmanager
def work_folder(output: Path, mark: Path, about: JsonObject) -> Iterator[None]:
    """Have a folder for this run alone: a new one, or one that the same run has begun.

    The file ``mark`` in it, or in a folder in it, describes the run, as ``about`` does this one.
    """
    lock = mark.parent / LOCK
    mark.parent.mkdir(parents=True, exist_ok=True)
    with locked(str(output), lock):
        for path in {*output.glob(UNFINISHED), *mark.parent.glob(UNFINISHED)}:
            path.unlink()  # of a run that was killed
        try:
            if {*output.iterdir(), *mark.parent.iterdir()} <= {mark.parent, mark, lock}:
                write_json(mark, about)
            before = msgspec.json.decode(mark.read_bytes())
        except (FileNotFoundError, ValueError, RecursionError) as error:
            raise InferenceError(f"{output}: holds something else; name a new folder") from error
        if other := differing(before, as_read(about)):
            raise InferenceError(f"{output}: was begun with other {other}; name another folder")
        yield
