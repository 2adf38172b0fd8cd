"""The two roles: loading a verifier and a drafter, and checking that they belong together."""

from __future__ import annotations

import os
from typing import Any

from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerModelBase
from fairseq.tasks import FairseqTask
from fairseq.utils import split_paths

from specdec_plugins.checkpoints.loading import is_drafter, load_model, load_state
from specdec_plugins.decoding.steps.supported import check_supported
from specdec_plugins.files.errors import CheckpointError, UnsupportedModelError
from specdec_plugins.models.drafter import Drafter

Path = str | os.PathLike[str]


def split_pair(path: str, verifier: str | None) -> tuple[str, str | None]:
    """Drafter and verifier of a ``--path`` that may name both, in either order, as fairseq does.

    Args:
        verifier: the path given with ``--AR-path``, which leaves nothing to split.

    Raises:
        CheckpointError: as ``load_state``; or the two are not a drafter and a verifier.
    """
    parts = [path] if os.path.exists(path) else split_paths(path)
    if len(parts) == 1:
        return path, verifier
    if verifier is not None or len(parts) > 2:
        raise CheckpointError(
            f"--path {path}: names {len(parts)} checkpoints; give the drafter's, and the "
            "verifier's with --AR-path, or both as drafter.pt:verifier.pt"
        )
    roles = [is_drafter(load_state(part, as_transformer=True)) for part in parts]
    if sum(roles) != 1:
        both = "drafters" if roles[0] else "verifiers"
        raise CheckpointError(f"--path {path}: both are {both}; give one of each")
    drafter, other = parts if roles[0] else parts[::-1]
    return drafter, other


def unwrapped(model: Any) -> BaseFairseqModel:
    """Return the model itself, without what fairseq wraps it in for several workers."""
    while not isinstance(model, BaseFairseqModel) and hasattr(model, "module"):
        model = model.module
    return model


def load_verifier(path: Path, task: FairseqTask) -> TransformerModelBase:
    """Return the verifier of a checkpoint: frozen, in evaluation mode.

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


def load_drafter(path: Path, task: FairseqTask) -> Drafter:
    """Return the drafter of a checkpoint, in evaluation mode.

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


def check_pair(drafter: Drafter, verifier: TransformerModelBase) -> None:
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
