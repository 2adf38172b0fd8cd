"""The files that a run's output depends on, and their record."""

from __future__ import annotations

import os
from pathlib import Path

import specdec_plugins
from specdec_plugins.checkpoints.head_file import find_head
from specdec_plugins.files.lock import NamedPaths, check_paths
from specdec_plugins.files.output import JsonObject, file_digest
from specdec_plugins.inference.pair_folder import SEGMENTATION, files_in_folder
from specdec_plugins.inference.settings import Settings


def check_run(settings: Settings, outputs: NamedPaths, inputs: NamedPaths) -> None:
    """Check the paths of a run, whose models are inputs."""
    named: dict[str, str | None] = {
        f"the model's {name}": path for name, path in model_files(settings).items()
    }
    named |= {"--path": settings.path, "PAIR": str(Path(settings.data) / SEGMENTATION)}
    named["--acceptance-head"] = getattr(settings.controller, "acceptance_head", None)
    check_paths(outputs, [*inputs, *named.items()])


def model_files(settings: Settings) -> dict[str, str]:
    """Return the models, dictionaries and codes that the output depends on, by name."""
    head = getattr(settings.controller, "acceptance_head", None)
    if settings.strategy != "specdec" or not settings.controller.asks_head:
        head = None
    elif head is None and settings.path is not None:
        head = find_head(settings.path, settings.rule)
    files = {
        "drafter": settings.path if settings.drafts else None,
        "verifier": settings.ar_path,
        "acceptance_head": None if head is None else str(head),
    }
    paths = {name: path for name, path in files.items() if path}
    paths |= {path.name: str(path) for path in sorted(Path(settings.data).glob("dict.*.txt"))}
    paths |= {Path(path).name: path for path in files_in_folder(settings.data).values()}
    for name, value in settings.encoder_options.items():
        if isinstance(value, str) and os.path.isfile(value):
            paths[name] = value
    return paths


def describe_settings(settings: Settings, seed: int | None = None) -> JsonObject:
    """Return the package's version, the models' digests, and all other settings.

    Args:
        seed: None where it decides nothing.
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
