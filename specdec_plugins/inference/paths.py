"""The files of a run, looked at together before any of them is written to."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from specdec_plugins.checkpoints.head_file import find_head
from specdec_plugins.decoding.controllers.registry import ACCEPTANCE_HEAD, COST_PROFILE
from specdec_plugins.inference.settings import InferenceError, Settings
from specdec_plugins.inference.streams import ERROR, OUTPUT
from specdec_plugins.inference.text import STANDARD

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
        (_label(role, path), _identity(path))
        for role, path in outputs
        if path is not None and path != STANDARD
    ]
    for group in (written, *([other] for other in others)):
        for label, identity in group:
            if identity is not None and identity in taken:
                raise InferenceError(
                    f"{label}: is the same file as {taken[identity]}; name another file"
                )
        taken.update((identity, label) for label, identity in group)


def check_run(settings: Settings, outputs: NamedPaths, inputs: NamedPaths) -> None:
    """:func:`check_paths` of a run, whose models are inputs, and whose cost profile is an output.

    Raises:
        InferenceError: two are the same file.
    """
    options = settings.controller
    given = {
        "--path": settings.path,
        "--AR-path": settings.ar_path,
        "--acceptance-head": options[ACCEPTANCE_HEAD],
        "--closest-to": settings.closest_to,
    }
    named = [(f"the model's {name}", path) for name, path in model_files(settings).items()]
    check_paths(
        [*outputs, ("--cost-profile", options[COST_PROFILE])], [*inputs, *named, *given.items()]
    )


def model_files(settings: Settings) -> dict[str, str]:
    """The files that the output depends on, by what they are: models, dictionaries, codes,
    references."""
    head = acceptance_head(settings)
    files = {
        "drafter": settings.path if settings.drafts else None,
        "verifier": settings.ar_path,
        "acceptance_head": None if head is None else str(head),
        "closest_to": settings.closest_to,
    }
    found = {name: path for name, path in files.items() if path}
    for path in sorted(Path(settings.data).glob("dict.*.txt")):
        found[path.name] = str(path)
    options = {"codes": os.path.join(settings.data, "codes"), **settings.encoder_options}
    for name, value in options.items():
        if isinstance(value, str) and os.path.isfile(value):
            found[name] = value
    return found


def acceptance_head(settings: Settings) -> Location | None:
    """The file of the head that a run asks: the one given, or the one beside the drafter."""
    options = settings.controller
    if settings.strategy != "specdec" or not options.reads_head:
        return None
    if options[ACCEPTANCE_HEAD] is not None or settings.path is None:
        return options[ACCEPTANCE_HEAD]
    return find_head(settings.path, settings.rule)


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


def _identity(path: Location | int) -> object:
    """What two names of one ordinary file have in common; None for what is no ordinary file."""
    try:
        status = os.stat(0 if path == STANDARD else path)
    except OSError:
        return None if isinstance(path, int) else os.path.realpath(path)
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def _label(role: str, path: Location) -> str:
    return "standard input" if path == STANDARD else f"{role} {os.fspath(path)}"
