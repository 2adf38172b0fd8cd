"""The two roles: loading a verifier and a drafter, and checking that they belong together."""

from __future__ import annotations

import os
from typing import Any

from specdec_plugins.checkpoints import CheckpointError, load_model
from specdec_plugins.decoding.verifier import UnsupportedModelError, check_supported
from specdec_plugins.models.drafter import Drafter

Path = str | os.PathLike[str]


def load_verifier(path: Path, task: Any) -> Any:
    """The verifier of a checkpoint: frozen, in evaluation mode.

    Raises:
        CheckpointError: as :func:`load_model`; or the file holds a drafter, or a model that cannot
            be verified with.
    """
    model = load_model(path, task)
    if isinstance(model, Drafter):
        raise CheckpointError(
            f"{path}: is a drafter, not a verifier; give the drafter with --path and the "
            "verifier with --AR-path"
        )
    try:
        check_supported(model)
    except UnsupportedModelError as error:
        raise CheckpointError(f"{path}: {error}") from error
    return model.requires_grad_(False)


def load_drafter(path: Path, task: Any) -> Drafter:
    """The drafter of a checkpoint, in evaluation mode.

    Raises:
        CheckpointError: as :func:`load_model`; or the file does not hold a drafter.
    """
    model = load_model(path, task)
    if not isinstance(model, Drafter):
        raise CheckpointError(
            f"{path}: is no drafter (its architecture is {type(model).__name__}); give the "
            "drafter with --path and the verifier with --AR-path"
        )
    return model.requires_grad_(False)


def check_pair(drafter: Drafter, verifier: Any) -> None:
    """Attach the verifier to the drafter.

    Raises:
        CheckpointError: the two do not speak of the same dictionary or widths.
    """
    ours = drafter.target_vocabulary
    theirs = len(verifier.decoder.dictionary)
    if ours is not None and ours != theirs:
        raise CheckpointError(
            f"the drafter's target dictionary has {ours} entries, the verifier's {theirs}; "
            "the two must be trained with the same dictionaries"
        )
    try:
        drafter.attach_verifier(verifier)
    except ValueError as error:
        raise CheckpointError(f"drafter and verifier do not fit: {error}") from error
