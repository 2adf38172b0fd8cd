"""A verifier and its drafter: loading both, and starting the drafter from the verifier."""

from __future__ import annotations

import logging
import os
from typing import Any, TypeVar

from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerEncoderBase, TransformerModelBase
from fairseq.tasks import FairseqTask
from fairseq.utils import split_paths

from specdec_plugins.checkpoints.export import inference_state
from specdec_plugins.checkpoints.loading import (
    State,
    check_dictionaries,
    is_drafter,
    load_model,
    load_state,
    load_upgraded,
    save_state,
)
from specdec_plugins.files.errors import CheckpointError
from specdec_plugins.files.output import Location
from specdec_plugins.host.checkpoints import REDUNDANT
from specdec_plugins.models.drafter import Drafter

logger = logging.getLogger(__name__)

STRUCTURE = ("encoder_attention_heads", "encoder_normalize_before")
#: Settings by which encoders with weights of the same shapes compute something else. The published
#: drafter was started from verifiers that differ in details.
DETAILS = ("activation_fn", "no_scale_embedding", "no_token_positional_embeddings")

Model = TypeVar("Model", bound=BaseFairseqModel)


def split_models(path: str) -> tuple[list[str], list[str]]:
    """Return the drafters and the verifiers of a ``--path`` that may name several checkpoints."""
    drafters: list[str] = []
    verifiers: list[str] = []
    names = split_paths(path)
    if len(names) == 1 or os.path.exists(path):
        return [path], []
    for name in names:
        if is_drafter(load_state(name, as_transformer=True)):
            drafters.append(name)
        else:
            verifiers.append(name)
    if len(drafters) > 1 or (drafters and len(verifiers) > 1):
        raise CheckpointError(
            f"--path {path}: give a drafter and its verifier, or verifiers of an ensemble"
        )
    return drafters, verifiers


def unwrapped(model: Any) -> BaseFairseqModel:
    """Return the model inside fairseq's wrappers for several workers."""
    while not isinstance(model, BaseFairseqModel) and hasattr(model, "module"):
        model = model.module
    return model


def load_verifier(
    path: Location, task: FairseqTask, state: State | None = None
) -> TransformerModelBase:
    """Return the verifier of a checkpoint, frozen and in evaluation mode.

    ``state``: see :func:`load_model`.
    """
    verifier = _load(path, task, TransformerModelBase, "verifier", state)
    for side in ("encoder", "decoder"):
        if not getattr(verifier, side).layers:
            raise CheckpointError(
                f"{path}: its {side} has no layers; such a model is not supported"
            )
    return verifier


def load_drafter(path: Location, task: FairseqTask, state: State | None = None) -> Drafter:
    """Return the drafter of a checkpoint, frozen and in evaluation mode.

    ``state``: see :func:`load_model`.
    """
    return _load(path, task, Drafter, "drafter", state)


def _load(
    path: Location, task: FairseqTask, kind: type[Model], role: str, state: State | None
) -> Model:
    model = load_model(path, task, state)
    if not isinstance(model, kind):
        raise CheckpointError(
            f"{path}: is no {role} (its architecture is {type(model).__name__}); "
            "give the drafter with --path and the verifier with --AR-path"
        )
    return model.requires_grad_(False)


def check_pair(drafter: Drafter, verifier: TransformerModelBase) -> None:
    """Attach the verifier to the drafter."""
    size = drafter.decoder.entries
    other = len(verifier.decoder.dictionary)
    if size != other:
        raise CheckpointError(
            f"the drafter's target dictionary has {size} entries, the verifier's {other}; "
            "train both with the same dictionaries"
        )
    try:
        drafter.attach_verifier(verifier)
    except ValueError as error:
        raise CheckpointError(f"drafter and verifier do not fit: {error}") from error


def init_encoder_from(
    encoder: TransformerEncoderBase, path: str, task: FairseqTask, exact: bool = True
) -> list[str]:
    """Copy the encoder weights of the verifier checkpoint ``path`` into ``encoder``.

    Args:
        task: the drafter's, whose dictionaries are compared.
        exact: require the same parameters and settings; otherwise parameters that the verifier
            lacks keep their values.

    Returns:
        the names of the copied parameters.
    """
    state = load_upgraded(path, getattr(getattr(task, "cfg", None), "as_transformer", False))
    check_dictionaries(state["task_state"], task, path)
    saved = {
        name.removeprefix("encoder."): tensor
        for name, tensor in state["model"].items()
        if name.startswith("encoder.") and _is_learned(name)
    }
    learned = {name: tensor for name, tensor in encoder.state_dict().items() if _is_learned(name)}
    shared = learned.keys() & saved.keys()
    missing = saved.keys() - learned.keys()
    if exact:
        missing |= learned.keys() - saved.keys()
    shapes = [name for name in shared if saved[name].shape != learned[name].shape]
    settings = {
        name: getattr(encoder.cfg.encoder, name.removeprefix("encoder_")) for name in STRUCTURE
    }
    settings |= {name: getattr(encoder.cfg, name) for name in DETAILS if exact}
    model = state["cfg"]["model"]
    others = [n for n, value in settings.items() if str(getattr(model, n, value)) != str(value)]
    if faults := [*(f"encoder.{name}" for name in sorted([*shapes, *missing])), *others]:
        raise CheckpointError(
            f"{path}: architecture or dictionary mismatch: the drafter has another {faults[0]}"
        )
    encoder.load_state_dict(saved, strict=False)
    logger.info("encoder initialised from %s (%d parameters)", path, len(shared))
    return sorted(shared)


def _is_learned(name: str) -> bool:
    return not REDUNDANT.search(name) and not name.endswith("version")


def write_initial_checkpoint(verifier: str, output: str, as_transformer: bool = False) -> list[str]:
    """Write a verifier checkpoint without its decoder, for the published workflow.

    fairseq-train starts an ``--arch block`` from the file, given as ``--restore-file`` with all
    four of the ``--reset-…`` flags.

    Returns:
        The names of the parameters written.
    """
    state = load_upgraded(verifier, as_transformer)
    if is_drafter(state):
        raise CheckpointError(f"{verifier}: is a drafter, not a verifier; give a verifier")
    weights = {k: t for k, t in state["model"].items() if not k.startswith("decoder")}
    save_state(inference_state(state, weights), output)
    return list(weights)
