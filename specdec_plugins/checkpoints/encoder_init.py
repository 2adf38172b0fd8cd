"""Copy a verifier's encoder into a drafter's, naming whatever does not fit."""

from __future__ import annotations

import logging

import torch
from fairseq.models.transformer import TransformerEncoderBase
from fairseq.tasks import FairseqTask

from specdec_plugins.checkpoints.dictionaries import check_dictionaries
from specdec_plugins.checkpoints.loading import is_drafter, load_upgraded, save_state
from specdec_plugins.files.errors import CheckpointError
from specdec_plugins.host.packed_encoder import REDUNDANT

logger = logging.getLogger(__name__)

STRUCTURE = ("encoder_attention_heads", "encoder_normalize_before")
DETAILS = ("activation_fn", "no_scale_embedding", "no_token_positional_embeddings")
"""Settings by which encoders with weights of the same shapes compute something else. The published
drafter was started from verifiers that differ in details."""


def init_encoder_from(
    encoder: TransformerEncoderBase, path: str, task: FairseqTask, exact: bool = True
) -> list[str]:
    """Copy the encoder weights of the verifier checkpoint ``path`` into ``encoder``.

    Args:
        task: the drafter's, whose dictionaries are compared.
        exact: require the same parameters and settings; otherwise parameters that the verifier
            lacks keep their values.

    Returns:
        The names of the copied parameters.

    Raises:
        CheckpointError: a name, shape, setting or dictionary differs, or the file cannot be read.
    """
    state = load_upgraded(path, getattr(getattr(task, "cfg", None), "as_transformer", False))
    check_dictionaries(state["task_state"], task, path)
    saved = {
        name.removeprefix("encoder."): tensor
        for name, tensor in state["model"].items()
        if name.startswith("encoder.") and _is_learned(name)
    }
    learned = {name: tensor for name, tensor in encoder.state_dict().items() if _is_learned(name)}
    fault = f"{path}: architecture or dictionary mismatch:"
    shared = [name for name in learned if name in saved]
    for name in shared:
        if saved[name].shape != learned[name].shape:
            raise CheckpointError(
                f"{fault} encoder.{name} is {tuple(saved[name].shape)}, the drafter's is "
                f"{tuple(learned[name].shape)}"
            )
    cfg = encoder.cfg
    settings = {name: getattr(cfg.encoder, name.removeprefix("encoder_")) for name in STRUCTURE}
    if exact:
        settings |= {name: getattr(cfg, name) for name in DETAILS}
    for name, value in settings.items():
        verifiers = getattr(state["cfg"]["model"], name, value)
        if str(verifiers) != str(value):
            raise CheckpointError(
                f"{fault} --{name.replace('_', '-')} is {verifiers} in the verifier, {value} in "
                "the drafter"
            )
    missing = dict.fromkeys(sorted(saved.keys() - learned.keys()), "drafter")
    if exact:
        missing |= {name: "verifier" for name in learned if name not in saved}
    for name, model in missing.items():
        raise CheckpointError(f"{fault} encoder.{name} is not in the {model}")
    with torch.no_grad():
        for name in shared:
            learned[name].copy_(saved[name])
    logger.info("encoder initialised from %s (%d parameters)", path, len(shared))
    return shared


def _is_learned(name: str) -> bool:
    return not REDUNDANT.search(name) and not name.endswith("version")


def write_initial_checkpoint(verifier: str, output: str, as_transformer: bool = False) -> list[str]:
    """Write a verifier checkpoint without its decoder, for the published workflow.

    fairseq-train starts an ``--arch block`` from the file, given as ``--restore-file`` with all
    four of the ``--reset-…`` flags. Optimizer state and averaged weights are left out.

    Returns:
        The names of the parameters written.

    Raises:
        CheckpointError: ``verifier`` cannot be read or is none, or ``output`` cannot be written.
    """
    state = load_upgraded(verifier, as_transformer)
    if is_drafter(state):
        raise CheckpointError(f"{verifier}: is a drafter, not a verifier; give a verifier")
    weights = {k: t for k, t in state["model"].items() if not k.startswith("decoder")}
    extra = {k: value for k, value in state["extra_state"].items() if not k.startswith("ema")}
    initial = {
        "args": None,
        "cfg": {part: vars(values) for part, values in state["cfg"].items()},
        "model": weights,
        "optimizer_history": state["optimizer_history"],
        "task_state": state["task_state"],
        "extra_state": extra,
    }
    save_state(initial, output)
    return list(weights)
