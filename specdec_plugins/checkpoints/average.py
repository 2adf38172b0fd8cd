"""The average of several checkpoints of one training, which often translates better than each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from specdec_plugins.checkpoints.dictionaries import KEY
from specdec_plugins.checkpoints.export import inference_state
from specdec_plugins.checkpoints.loading import State, first_mismatches, save_state
from specdec_plugins.checkpoints.upgrade import load_upgraded
from specdec_plugins.files.errors import CheckpointError, explained
from specdec_plugins.host.packed_encoder import without_copies

EPOCHS = re.compile(r"checkpoint(\d+)\.pt")
UPDATES = re.compile(r"checkpoint_\d+_(\d+)\.pt")

Weights = dict[str, Tensor]


def last_checkpoints(
    folder: str, count: int, names: re.Pattern[str], upper_bound: int | None = None
) -> list[str]:
    """Return the paths of the last ``count`` checkpoints of a training, the newest first.

    Args:
        folder: the training's ``--save-dir``.
        names: ``EPOCHS`` or ``UPDATES``, which says what is counted.
        upper_bound: the last epoch or update to take.

    Raises:
        CheckpointError: ``folder`` is none, or holds fewer.
    """
    remedy = "give the --save-dir of a training"
    with explained(f"{folder}: cannot be read", remedy, CheckpointError):
        found = {path: names.fullmatch(path.name) for path in Path(folder).iterdir()}
    numbers = {path: int(match[1]) for path, match in found.items() if match}
    kept = [path for path in numbers if upper_bound is None or numbers[path] <= upper_bound]
    if len(kept) < count:
        what = "checkpoint_EPOCH_UPDATE.pt" if names is UPDATES else "checkpointEPOCH.pt"
        most = "" if upper_bound is None else f" up to {upper_bound}"
        raise CheckpointError(
            f"{folder}: holds {len(kept)} files {what}{most}, not {count}; ask for fewer, or keep "
            "more in training"
        )
    return [str(path) for path in sorted(kept, key=lambda path: -numbers[path])[:count]]


def average_checkpoints(paths: Sequence[str], output: str, as_transformer: bool = False) -> int:
    """Write the mean of models' weights, summed in float32, to ``output``.

    The file is for inference: it has the settings of the first checkpoint and float32 weights, but
    no optimizer state and no paths. Tensors that are one in the first checkpoint stay one.

    Returns:
        The size of ``output`` in bytes.

    Raises:
        CheckpointError: a checkpoint cannot be read, holds another model, other parameters or
            fingerprints of other dictionaries than the first, or ``output`` cannot be written. It
            is then left as it was.
    """
    first = _read(paths[0], as_transformer)
    # Copies, or a table that is shared would be added to once for each of its names.
    total = {
        name: tensor.to(torch.float32, copy=True) if tensor.is_floating_point() else tensor.clone()
        for name, tensor in first["model"].items()
    }
    for path in paths[1:]:
        state = _read(path, as_transformer)
        if fault := _difference(first, state):
            raise CheckpointError(
                f"{path}: {fault}; give checkpoints of one training ({paths[0]} was the first)"
            )
        for name, tensor in state["model"].items():
            if tensor.is_floating_point():
                total[name] += tensor
    for tensor in total.values():
        if tensor.is_floating_point():
            tensor /= len(paths)
    return save_state(inference_state(first, _tied(total, first["model"])), output)


def _read(path: str, as_transformer: bool) -> State:
    state = load_upgraded(path, as_transformer)
    weights = without_copies(state["model"])
    if not all(isinstance(tensor, Tensor) for tensor in weights.values()):
        raise CheckpointError(f"{path}: is no model that translates; give a verifier or a drafter")
    state["model"] = weights
    return state


def _difference(first: State, state: State) -> str:
    """Return how another checkpoint's model differs from the first one's, in words."""
    wanted, found = (one["cfg"]["model"].arch for one in (first, state))
    if found != wanted:
        return f"is a {found}, not a {wanted}"
    dictionaries = [one["task_state"].get(KEY) for one in (first, state)]
    if None not in dictionaries and dictionaries[0] != dictionaries[1]:
        return "was trained with other dictionaries"
    return first_mismatches(first["model"], state["model"])


def _tied(total: Weights, weights: Weights) -> Weights:
    """Means of tensors that were one in ``weights``, as one tensor if they are equal."""
    names: dict[tuple[int, torch.Size], str] = {}
    for name, tensor in weights.items():
        other = names.setdefault((tensor.data_ptr(), tensor.shape), name)
        if torch.equal(total[other], total[name]):
            total[name] = total[other]
    return total
