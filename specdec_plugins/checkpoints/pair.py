"""Loading a verifier and a drafter, and checking that they belong together."""

from __future__ import annotations

import os
from typing import Any, TypeVar

from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerModelBase
from fairseq.tasks import FairseqTask
from fairseq.utils import split_paths

from specdec_plugins.checkpoints.loading import is_drafter, load_model, load_state
from specdec_plugins.files.errors import CheckpointError
from specdec_plugins.models.drafter import Drafter

Path = str | os.PathLike[str]
Model = TypeVar("Model", bound=BaseFairseqModel)


def split_pair(path: str, verifier: str | None) -> tuple[str, str | None]:
    """Return drafter and verifier of a ``--path`` that may name both, in either order.

    Args:
        verifier: the path given with ``--AR-path``, which leaves nothing to split.

    Raises:
        CheckpointError: as :func:`load_state`; or the two are not a drafter and a verifier.
    """
    parts = [path] if os.path.exists(path) else split_paths(path)
    if len(parts) == 1:
        return path, verifier
    if len(parts) == 2 and verifier is None:
        roles = [is_drafter(load_state(part, as_transformer=True)) for part in parts]
        if sum(roles) == 1:
            return parts[not roles[0]], parts[roles[0]]
    raise CheckpointError(
        f"--path {path}: give the drafter's checkpoint, and the verifier's with --AR-path, or one "
        "of each as drafter.pt:verifier.pt"
    )


def unwrapped(model: Any) -> BaseFairseqModel:
    """Return the model inside fairseq's wrappers for several workers."""
    while not isinstance(model, BaseFairseqModel) and hasattr(model, "module"):
        model = model.module
    return model


def load_verifier(path: Path, task: FairseqTask) -> TransformerModelBase:
    """Return the verifier of a checkpoint, frozen and in evaluation mode.

    Raises:
        CheckpointError: as :func:`load_model`; or the model is no Transformer of fairseq's.
    """
    return _load(path, task, TransformerModelBase, "verifier")


def load_drafter(path: Path, task: FairseqTask) -> Drafter:
    """Return the drafter of a checkpoint, frozen and in evaluation mode.

    Raises:
        CheckpointError: as :func:`load_model`; or the model is no drafter.
    """
    return _load(path, task, Drafter, "drafter")


def _load(path: Path, task: FairseqTask, kind: type[Model], role: str) -> Model:
    model = load_model(path, task)
    if not isinstance(model, kind):
        raise CheckpointError(
            f"{path}: is no {role} (its architecture is {type(model).__name__}); give the drafter "
            "with --path and the verifier with --AR-path"
        )
    return model.requires_grad_(False)


def check_pair(drafter: Drafter, verifier: TransformerModelBase) -> None:
    """Attach the verifier to the drafter."""
    size, other = drafter.target_vocabulary, len(verifier.decoder.dictionary)
    if size is not None and size != other:
        raise CheckpointError(
            f"the drafter's target dictionary has {size} entries, the verifier's {other}; "
            "the two must be trained with the same dictionaries"
        )
    try:
        drafter.attach_verifier(verifier)
    except ValueError as error:
        raise CheckpointError(f"drafter and verifier do not fit: {error}") from error
