"""The files that a run's output depends on, and what records say of them."""

from __future__ import annotations

import os
from pathlib import Path

import specdec_plugins
from specdec_plugins.checkpoints.head_file import find_head
from specdec_plugins.files.lock import NamedPaths, check_paths
from specdec_plugins.files.output import JsonObject, Location, file_digest
from specdec_plugins.inference.pair_folder import SEGMENTATION, files_in_folder
from specdec_plugins.inference.settings import Settings


def check_run(settings: Settings, outputs: NamedPaths, inputs: NamedPaths) -> None:
    """:func:`check_paths` of a run, whose models are inputs.

    Raises:
        InferenceError: two are the same file.
    """
    given = {
        "--path": settings.path,
        "--AR-path": settings.ar_path,
        "--acceptance-head": getattr(settings.controller, "acceptance_head", None),
        "PAIR": Path(settings.data) / SEGMENTATION,
    }
    named = [(f"the model's {name}", path) for name, path in model_files(settings).items()]
    check_paths(outputs, [*inputs, *named, *given.items()])


def model_files(settings: Settings) -> dict[str, str]:
    """Return the files that the output depends on, by what they are: models, dictionaries,
    codes."""
    head = acceptance_head(settings)
    files = {
        "drafter": settings.path if settings.drafts else None,
        "verifier": settings.ar_path,
        "acceptance_head": None if head is None else str(head),
    }
    found = {name: path for name, path in files.items() if path}
    for path in sorted(Path(settings.data).glob("dict.*.txt")):
        found[path.name] = str(path)
    found |= {Path(path).name: path for path in files_in_folder(settings.data).values()}
    for name, value in settings.encoder_options.items():
        if isinstance(value, str) and os.path.isfile(value):
            found[name] = value
    return found


def acceptance_head(settings: Settings) -> Location | None:
    """Return the file of the head that a run asks: the one given, or the one beside the drafter."""
    if settings.strategy != "specdec" or not settings.controller.asks_head:
        return None
    path: Location | None = getattr(settings.controller, "acceptance_head", None)
    if path is not None or settings.path is None:
        return path
    return find_head(settings.path, settings.rule.name)


def describe_settings(settings: Settings, seed: int | None = None) -> JsonObject:
    """This package's version; ``models``: the digests of the files that settings name; and
    ``settings``: all else.

    ``seed``: None where it decides nothing.
    """
    described = settings.describe()
    models = model_files(settings)
    options = described.pop("encoder_options")
    for name in ("data", "path", "ar_path"):
        del described[name]
    if "acceptance_head" in models:
        del described["controller"]["acceptance_head"]
    return {
        "specdec_plugins": specdec_plugins.__version__,
        "models": {name: file_digest(path) for name, path in models.items()},
        "settings": {
            **described,
            "encoder_options": {k: v for k, v in options.items() if k not in models},
            **({} if seed is None else {"seed": seed}),
        },
    }
