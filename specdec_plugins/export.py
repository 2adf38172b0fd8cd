"""Making a checkpoint fit to be shipped: half-precision weights and settings, nothing else."""

from __future__ import annotations

import os
from argparse import Namespace
from typing import Any

import torch
from fairseq.dataclass.configs import FairseqConfig
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from omegaconf import OmegaConf
from torch import Tensor

from specdec_plugins.checkpoints import REDUNDANT, CheckpointError, load_state

# Settings that name places on the machine that trained; none is needed to build the model.
PLACES = (
    "data",
    "save_dir",
    "restore_file",
    "finetune_from_model",
    "user_dir",
    "log_file",
    "tensorboard_logdir",
    "plasma_path",
    "aim_repo",
    "distributed_init_method",
    "AR_path",
    "init_encoder_from",
)


def export_checkpoint(
    source: str, target: str, source_lang: str | None = None, target_lang: str | None = None
) -> int:
    """Write ``source`` to ``target`` with float16 weights and without optimizer state or paths.

    Args:
        source_lang, target_lang: written into the checkpoint; fairseq saves only languages that
            training was given by flag, and else reads them off its data directory.

    Returns:
        The size of ``target`` in bytes.

    Raises:
        CheckpointError: ``source`` cannot be read, or ``target`` not be written.
    """
    state = load_state(source)
    if not all(isinstance(tensor, Tensor) for tensor in state["model"].values()):
        raise CheckpointError(
            f"{source}: is no model that translates; of an acceptance head's checkpoint "
            "scripts/calibrate_head.py makes the file to ship"
        )
    cfg = OmegaConf.to_container(state["cfg"], resolve=True, enum_to_str=True)
    assert isinstance(cfg, dict)
    # What fairseq's hub interface asks for too, but nothing that hydra adds.
    groups = FairseqConfig.__dataclass_fields__
    settings = {name: _without_places(group) for name, group in cfg.items() if name in groups}
    if isinstance(settings["task"], dict):
        settings["task"] = {**_defaults(settings["task"].get("_name")), **settings["task"]}
    for name, language in (("source_lang", source_lang), ("target_lang", target_lang)):
        if language:
            settings["task"][name] = language
    exported = {
        "cfg": settings,
        "args": None,
        "model": _half(state["model"]),
        "optimizer_history": [{**state["optimizer_history"][-1], "optimizer_state": None}],
        "extra_state": {},
        "task_state": {},
    }
    partial = f"{target}.part"
    try:
        torch.save(exported, partial)
        os.replace(partial, target)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{target}: cannot be written ({error})") from error
    return os.path.getsize(target)


def _defaults(task: Any) -> dict[str, Any]:
    """The defaults of a task's options, where they are known. fairseq's hub interface sets no
    option that a checkpoint does not name, such as those that are younger than it."""
    config = TASK_DATACLASS_REGISTRY.get(task)
    if config is None:
        return {}
    defaults = OmegaConf.to_container(OmegaConf.structured(config), resolve=False, enum_to_str=True)
    assert isinstance(defaults, dict)
    # Not what has no default, or follows an option of another group.
    return {
        str(name): value
        for name, value in defaults.items()
        if not (isinstance(value, str) and (value == "???" or value.startswith("${")))
    }


def _without_places(settings: Any) -> Any:
    if isinstance(settings, Namespace):
        return Namespace(**_without_places(vars(settings)))
    if isinstance(settings, dict):
        return {
            name: None if name in PLACES else _without_places(value)
            for name, value in settings.items()
        }
    return settings


def _half(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Floating point tensors in float16; tensors that were one stay one."""
    halves: dict[tuple[int, torch.Size], Tensor] = {}
    result = {}
    for name, tensor in weights.items():
        if REDUNDANT.search(name):
            continue
        key = (tensor.data_ptr(), tensor.shape)
        if tensor.is_floating_point() and tensor.numel() > 1:
            # clone: a slice would take its whole storage along.
            result[name] = halves.setdefault(key, tensor.detach().half().clone())
        else:
            result[name] = tensor.detach().clone()
    return result
