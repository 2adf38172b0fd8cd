"""Copy a verifier's encoder into a drafter's, naming whatever does not fit."""

from __future__ import annotations

import logging
from argparse import Namespace

import torch
from fairseq.models.transformer import TransformerEncoderBase
from fairseq.tasks import FairseqTask

from specdec_plugins.checkpoints.dictionaries import check_dictionaries
from specdec_plugins.checkpoints.loading import is_drafter, save_state
from specdec_plugins.checkpoints.upgrade import load_upgraded
from specdec_plugins.files.errors import CheckpointError
from specdec_plugins.host.packed_encoder import REDUNDANT

logger = logging.getLogger(__name__)

# Encoders that differ here hold weights of the same shapes and compute something else. The
# published drafter was started from verifiers that differ beyond the first two.
SETTINGS = (
    "encoder_attention_heads",
    "encoder_normalize_before",
    "activation_fn",
    "no_scale_embedding",
    "no_token_positional_embeddings",
)
ALWAYS = SETTINGS[:2]


def init_encoder_from(
    encoder: TransformerEncoderBase, path: str, task: FairseqTask, exact: bool = True
) -> list[str]:
    """Copy the encoder weights of the verifier checkpoint ``path`` into ``encoder``.

    Args:
        task: the drafter's, whose dictionaries are compared.
        exact: the encoders must have the same parameters and settings. Otherwise parameters that
            the verifier lacks keep their values.

    Returns:
        The names copied.

    Raises:
        CheckpointError: a name, shape, setting or dictionary differs, or the file cannot be read.
    """
    state = load_upgraded(path, getattr(getattr(task, "cfg", None), "as_transformer", False))
    check_dictionaries(state["task_state"], task, path)
    own = encoder.state_dict()
    theirs = {
        name.removeprefix("encoder."): tensor
        for name, tensor in state["model"].items()
        if name.startswith("encoder.") and _is_learned(name)
    }
    names = [name for name in own if _is_learned(name)]
    for name in names:
        if name in theirs and theirs[name].shape != own[name].shape:
            table = name == "embed_tokens.weight" and len(theirs[name]) != len(own[name])
            what = "dictionary" if table else "architecture"
            raise CheckpointError(
                f"{path}: {what} mismatch: encoder.{name} is {tuple(theirs[name].shape)}, "
                f"the drafter's is {tuple(own[name].shape)}"
            )
    _check_settings(encoder, state["cfg"]["model"], path, SETTINGS if exact else ALWAYS)
    extra = sorted(set(theirs) - set(names))
    missing = [name for name in names if name not in theirs]
    if extra or (exact and missing):
        raise CheckpointError(
            f"{path}: architecture mismatch: encoder.{(extra + missing)[0]} is "
            f"{'not in the drafter' if extra else 'not in the verifier'}"
        )
    with torch.no_grad():
        for name in names:
            if name in theirs:
                own[name].copy_(theirs[name])
    logger.info("encoder initialised from %s (%d parameters)", path, len(names) - len(missing))
    return [name for name in names if name in theirs]


def _is_learned(name: str) -> bool:
    return not REDUNDANT.search(name) and not name.endswith("version")


def _check_settings(
    encoder: TransformerEncoderBase, verifier_cfg: Namespace, path: str, names: tuple[str, ...]
) -> None:
    cfg = encoder.cfg
    ours = {
        "encoder_attention_heads": cfg.encoder.attention_heads,
        "encoder_normalize_before": cfg.encoder.normalize_before,
        "activation_fn": str(cfg.activation_fn),
        "no_scale_embedding": cfg.no_scale_embedding,
        "no_token_positional_embeddings": cfg.no_token_positional_embeddings,
    }
    for name in names:
        theirs = getattr(verifier_cfg, name, ours[name])
        if theirs != ours[name]:
            raise CheckpointError(
                f"{path}: architecture mismatch: --{name.replace('_', '-')} is {theirs} in the "
                f"verifier, {ours[name]} in the drafter"
            )


def write_initial_checkpoint(verifier: str, output: str, as_transformer: bool = False) -> list[str]:
    """Write a verifier checkpoint without its decoder, for the published workflow.

    fairseq-train starts an ``--arch block`` from the file, given as ``--restore-file`` with all
    four of the ``--reset-…`` flags. Optimizer state and averaged weights are left out.

    Returns:
        The names of the parameters kept.

    Raises:
        CheckpointError: ``verifier`` cannot be read or is none, or ``output`` cannot be written.
    """
    state = load_upgraded(verifier, as_transformer)
    if is_drafter(state):
        raise CheckpointError(f"{verifier}: is a drafter, not a verifier; give a verifier")
    kept = {k: t for k, t in state["model"].items() if not k.startswith("decoder")}
    initial = {
        "args": None,
        "cfg": {part: vars(values) for part, values in state["cfg"].items()},
        "model": kept,
        "optimizer_history": state["optimizer_history"],
        "task_state": state["task_state"],
        "extra_state": {
            key: value for key, value in state["extra_state"].items() if not key.startswith("ema")
        },
    }
    save_state(initial, output)
    return list(kept)
