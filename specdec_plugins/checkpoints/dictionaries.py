"""Fingerprints of dictionaries, which checkpoints hold in the state of their task.

With a wrong dictionary of the right size a model loads, and translates into nonsense.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping

from fairseq.data import Dictionary
from fairseq.tasks import FairseqTask

from specdec_plugins.checkpoints.archive import one_line, warn_once
from specdec_plugins.files.errors import CheckpointError

KEY = "dictionaries"
"""The key of a checkpoint's ``task_state`` that holds the fingerprints, by side."""
SIDES = ("source", "target")


def dictionary_fingerprint(dictionary: Dictionary) -> str:
    """Return the SHA-256 of a fairseq dictionary's symbols, in their order."""
    digest = hashlib.sha256()
    for symbol in dictionary.symbols:
        digest.update(symbol.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


def fingerprints(task: FairseqTask) -> dict[str, str]:
    """Return the fingerprints of a task's dictionaries, by side."""
    both = {side: getattr(task, f"{side}_dictionary", None) for side in SIDES}
    return {side: dictionary_fingerprint(both[side]) for side in SIDES if both[side] is not None}


def load_dictionary(folder: str, language: str | None) -> Dictionary:
    """Return a language's dictionary."""
    path = os.path.join(folder, f"dict.{language}.txt")
    try:
        return Dictionary.load(path)
    except Exception as error:  # fairseq raises several kinds
        raise CheckpointError(
            f"{path}: cannot be read as a dictionary ({one_line(error)}); name its folder, and the "
            "languages"
        ) from error


def check_dictionaries(task_state: object, task: FairseqTask, name: str) -> None:
    """Compare a task's dictionaries with those that the checkpoint ``name`` was trained with.

    A checkpoint of another program, which names none, gets a warning.
    """
    saved = task_state.get(KEY) if isinstance(task_state, Mapping) else None
    if not isinstance(saved, Mapping):
        warn_once(f"{name}: does not say which dictionaries it was trained with; check yours")
        return
    for side, current in fingerprints(task).items():
        if saved.get(side) != current:
            raise CheckpointError(
                f"{name}: was trained with another {side} dictionary (other words, or another "
                "order of them); give the data directory that it was trained with"
            )
