"""Reading fairseq checkpoints without running code that may be hidden in them.

A checkpoint is a pickle, and a pickle can name any function to be called while it is read.
torch's ``weights_only`` reading refuses every global that is not on a list; this module extends
that list by the harmless types that fairseq's checkpoints hold, reads only in that way on every
torch, and turns what can go wrong into errors of one line.
"""

from __future__ import annotations

import inspect
import os
import pickle
import re
import tarfile
import zipfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from fairseq import checkpoint_utils
from fairseq.dataclass.utils import overwrite_args_by_name
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY

from specdec_plugins.safe_globals import register_safe_globals, restricted

if TYPE_CHECKING:
    from fairseq.models import BaseFairseqModel
    from fairseq.tasks import FairseqTask

# What fairseq's own upgrade of an old checkpoint cannot do without. "cfg" may be "args".
REQUIRED = ("model", "cfg", "optimizer_history", "extra_state")

# fairseq 0.12.2, and it alone, also stores the encoder's weights in a second, packed form, and
# older ones a placeholder of the table of sinusoidal positions.
REDUNDANT = re.compile(r"\.((in_proj|out_proj|fc1|fc2)_(weight|bias)|_float_tensor)$")


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be used: one line that names the file, the fault, the remedy."""


def load_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a fairseq checkpoint onto the CPU, upgraded as fairseq does it: ``cfg`` is a DictConfig.

    Raises:
        CheckpointError: the file is missing, unreadable, damaged, not a checkpoint of fairseq's,
            or would need to run something while it is read. Nothing of it has been run then.
    """
    name = os.fspath(path)
    check_file(name)
    register_safe_globals()
    try:
        with restricted():
            state = checkpoint_utils.load_checkpoint_to_cpu(name)
    except Exception as error:  # a damaged file can raise anything at all
        raise CheckpointError(f"{name}: {_explain(name, error)}") from error
    if fault := _lacks(state):
        raise CheckpointError(f"{name}: {fault}")
    return state


def load_model(
    path: str | os.PathLike[str], task: FairseqTask, overrides: Mapping[str, Any] | None = None
) -> BaseFairseqModel:
    """Build the model of a checkpoint from the configuration saved in it, for inference.

    Like fairseq's ``load_model_ensemble_and_task``, but ``task`` (which lends the dictionaries)
    keeps its own state, and the model is on the CPU, in float32 and in evaluation mode.

    Args:
        path: a checkpoint as fairseq saves it.
        task: the task to build the model with.
        overrides: settings by name that replace saved ones (``--model-overrides``).

    Raises:
        CheckpointError: as ``load_state``; or the architecture is unknown, the configuration
            impossible, or the weights do not fit the model that it describes.
    """
    name = os.fspath(path)
    state = load_state(name)
    cfg = state["cfg"]
    if overrides:
        overwrite_args_by_name(cfg, dict(overrides))
    model = _build_model(name, task, cfg.model if "model" in cfg else None)
    # Some models change with the update they are at (layer freezing, schedules of dropout).
    model.set_num_updates(state["optimizer_history"][-1]["num_updates"])
    wanted = model.state_dict()
    weights = {
        key: value
        for key, value in state["model"].items()
        if key in wanted or not REDUNDANT.search(key)
    }
    # fairseq 0.12.2 wants the placeholder of which it never reads the value; others do not save it.
    placeholders = {key: value for key, value in wanted.items() if key.endswith("._float_tensor")}
    weights = {**placeholders, **weights}
    try:
        model.load_state_dict(weights, strict=True, model_cfg=cfg.model)
    except (RuntimeError, KeyError) as error:
        fault = _first_mismatches(wanted, weights) or _one_line(error)
        raise CheckpointError(
            f"{name}: the weights do not fit the model: {fault}; "
            "check that the data directory holds the dictionaries it was trained with"
        ) from error
    use_plain_encoder(model)
    model.eval()
    return model


def use_plain_encoder(model: torch.nn.Module) -> None:
    """Keep fairseq 0.12.2 from its packed encoder, which fails on padding since torch 2.

    The packed weights are frozen, too: they would never get a gradient, and data-parallel training
    fails where a parameter that is not frozen gets none. Other versions of fairseq have nothing to
    keep from.
    """
    for module in model.modules():
        if "can_use_fastpath" in vars(module):
            vars(module)["can_use_fastpath"] = False
    for name, parameter in model.named_parameters():
        if REDUNDANT.search(name):
            parameter.requires_grad_(False)


def check_file(name: str) -> None:
    """Refuse what is no readable file, and the two formats that old torch reads unrestrictedly."""
    if os.path.isdir(name):
        raise CheckpointError(f"{name}: is a directory; name a checkpoint file (.pt) in it")
    try:
        with open(name, "rb"):
            archive = _is_tar(name) or _is_torchscript(name)
    except FileNotFoundError:
        raise CheckpointError(f"{name}: no such file; check the path") from None
    except OSError as error:
        fault = error.strerror or _one_line(error)
        raise CheckpointError(f"{name}: cannot be read ({fault}); check its permissions") from error
    if archive:
        raise CheckpointError(
            f"{name}: refused: a tar or TorchScript archive can hold code; "
            "save the model as a checkpoint with fairseq-train"
        )


def _is_tar(name: str) -> bool:
    try:
        with tarfile.open(name, "r:") as archive:
            return next(iter(archive), None) is not None
    except tarfile.TarError:
        return False


def _is_torchscript(name: str) -> bool:
    try:
        with zipfile.ZipFile(name) as archive:
            return any(entry.split("/")[-1] == "constants.pkl" for entry in archive.namelist())
    except zipfile.BadZipFile:
        return False


def _explain(name: str, error: Exception) -> str:
    """Why reading failed, and the remedy, as the end of a line that begins with the file."""
    if isinstance(error, (pickle.UnpicklingError, RuntimeError)):
        forbidden = re.search(r"GLOBAL ([\w.]+)", str(error))
        if forbidden:
            return (
                f"refused: would need to run {forbidden[1]}; "
                "checkpoints of fairseq-train do not: get the file from its author again"
            )
    try:
        state = torch.load(name, map_location="cpu", weights_only=True)
    except Exception:
        return "not a checkpoint, or truncated or damaged; copy or download it again"
    return _lacks(state) or f"fairseq cannot upgrade it ({_one_line(error)}); save it again"


def _lacks(state: Any) -> str | None:
    """What a fairseq checkpoint must hold and ``state`` does not, with the remedy; None if all."""
    remedy = "give a checkpoint that fairseq-train has saved"
    if not isinstance(state, Mapping):
        return f"not a fairseq checkpoint: it holds a {type(state).__name__}; {remedy}"
    present = {key for key in REQUIRED if state.get(key) is not None}
    if state.get("args") is not None:
        present.add("cfg")
    missing = ", ".join(f"'{key}'" for key in REQUIRED if key not in present)
    return f"not a fairseq checkpoint: it has no {missing}; {remedy}" if missing else None


def _build_model(name: str, task: FairseqTask, model_cfg: Any) -> BaseFairseqModel:
    architecture = getattr(model_cfg, "_name", None) or getattr(model_cfg, "arch", None)
    if architecture not in ARCH_MODEL_REGISTRY and architecture not in MODEL_DATACLASS_REGISTRY:
        raise CheckpointError(
            f"{name}: unknown architecture {architecture!r}; "
            "give the --user-dir of the plugin that defines it"
        )
    # Tasks written for older versions of fairseq do not take the flag.
    takes_flag = "from_checkpoint" in inspect.signature(task.build_model).parameters
    try:
        return task.build_model(model_cfg, **({"from_checkpoint": True} if takes_flag else {}))
    except (ValueError, AssertionError) as error:
        raise CheckpointError(
            f"{name}: its {architecture} model cannot be built: {_one_line(error)}; "
            "check that the data directory holds the dictionaries it was trained with"
        ) from error


def _first_mismatches(
    wanted: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor], most: int = 3
) -> str:
    """The first differences between a model's parameters and the weights read, in words."""
    found = [
        f"{key} has shape {tuple(given[key].shape)} instead of {tuple(value.shape)}"
        for key, value in wanted.items()
        if key in given and given[key].shape != value.shape
    ]
    found += [f"{key} is missing" for key in wanted if key not in given]
    found += [f"{key} is unknown" for key in given if key not in wanted]
    rest = [f"and {len(found) - most} more"] if len(found) > most else []
    return ", ".join(found[:most] + rest)


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
