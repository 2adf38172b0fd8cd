"""Files of acceptance heads."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path

import torch

from specdec_plugins.checkpoints.archive import check_weights, load_archive
from specdec_plugins.checkpoints.config import saved_fields
from specdec_plugins.checkpoints.loading import load_state, save_state
from specdec_plugins.decoding.acceptance import RULES, AcceptanceRule, Scoring, choose_rule
from specdec_plugins.decoding.controllers.base import Controller, Head
from specdec_plugins.decoding.options import option_types
from specdec_plugins.files.errors import CheckpointError, ConfigError
from specdec_plugins.host.checkpoints import without_memory
from specdec_plugins.models.acceptance_head import AcceptanceHead, HeadSettings, fingerprint
from specdec_plugins.models.drafter import Drafter

HEAD_FILE = "acceptance_head.pt"
REMEDY = "train one with scripts/train_head.sh and scripts/calibrate_head.py"
PREFIX = "head."

Location = str | os.PathLike[str]


def head_scoring(settings: HeadSettings) -> Scoring:
    """Return the scoring for which a head was trained."""
    rule = choose_rule(settings.rule)
    return Scoring(rule, settings.rule_temperature, settings.repetition_penalty)


def find_head(drafter_path: Location, rule: AcceptanceRule) -> Path | None:
    """Return the head beside a drafter's checkpoint, or None.

    A head for the rule, e.g. ``acceptance_head.relaxed.pt``, comes before the general one.
    """
    names = ([] if rule.name == "strict" else [f"acceptance_head.{rule.name}.pt"]) + [HEAD_FILE]
    paths = (Path(drafter_path).parent / name for name in names)
    return next((path for path in paths if path.is_file()), None)


def save_head(path: Location, head: AcceptanceHead) -> int:
    """Write a head with weights in float16, and return the file's size in bytes.

    Raises:
        CheckpointError: the file cannot be written; an older one is left as it was.
    """
    weights = {name: tensor.detach().half().cpu() for name, tensor in head.named_parameters()}
    return save_state({"acceptance_head": head.settings.to_file(), "model": weights}, path)


def load_head(
    path: Location, drafter: Drafter, scoring: Scoring, block_size: int
) -> AcceptanceHead:
    """Read a head, frozen, in float32 on the CPU.

    Args:
        drafter: the drafter whose states the head reads, in the precision of its checkpoint.
        scoring: the acceptance that the head predicts.

    Raises:
        CheckpointError: the file cannot be read or is no head, or the head is for another drafter
            or scoring, or for smaller blocks.
    """
    state = load_archive(path)
    settings = _settings(path, state.get("acceptance_head"))
    if settings.drafter != fingerprint(drafter):
        raise CheckpointError(
            f"{path}: trained for another drafter; train one for this drafter with "
            "scripts/train_head.sh"
        )
    trained = head_scoring(settings)
    if str(trained) != str(scoring):
        raise CheckpointError(
            f"{path}: trained for {trained} acceptance, not {scoring}; give "
            f"{trained.flags_instead_of(scoring)}, or train one with your flags with "
            "scripts/train_head.sh"
        )
    if block_size > settings.block_size:
        raise CheckpointError(
            f"{path}: trained for blocks of {settings.block_size}; give --block-size "
            f"{settings.block_size} or less"
        )
    return _with_weights(path, settings, state.get("model"))


def controller_head(
    controller: Controller,
    drafter: Drafter,
    scoring: Scoring,
    block_size: int | None,
    device: torch.device | str,
    drafter_path: Location | None = None,
) -> Head | None:
    """Return the head that a controller asks: its option's, or the one beside the drafter.

    Args:
        device: that of the drafter's states.

    Raises:
        CheckpointError: as :func:`load_head`.
    """
    if not controller.asks_head:
        return None
    path: Location | None = getattr(controller, "acceptance_head", None)
    if path is None and drafter_path:
        path = find_head(drafter_path, scoring.rule)
    if path is None:
        return None
    return load_head(path, drafter, scoring, block_size or drafter.block_size).to(device)


def load_trained_head(path: Location) -> tuple[AcceptanceHead, dict[str, Namespace]]:
    """Return the head of a checkpoint of ``fairseq-train``, and the checkpoint's ``cfg``.

    Raises:
        CheckpointError: the file cannot be read or is a checkpoint of something else.
    """
    state = load_state(path)
    settings = _settings(path, state["model"].get(f"{PREFIX}_extra_state"))
    weights = {
        name.removeprefix(PREFIX): value
        for name, value in state["model"].items()
        if not name.endswith("_extra_state")
    }
    return _with_weights(path, settings, weights), state["cfg"]


def _settings(path: Location, saved: object) -> HeadSettings:
    if not isinstance(saved, dict):
        raise CheckpointError(f"{path}: not an acceptance head; {REMEDY}")
    try:
        kinds = option_types(*RULES)
        settings = HeadSettings.from_file(saved_fields(saved, HeadSettings, kinds))
        scales = settings.temperature, settings.rule_temperature, settings.repetition_penalty
        sizes = settings.channels, settings.block_size, settings.layers + 1
        if min(sizes) < 1 or not all(0 < scale < float("inf") for scale in scales):
            raise ConfigError("a size, temperature or penalty is impossible")
        head_scoring(settings)
    except (ValueError, TypeError) as error:  # for a wrong value, for a missing one
        raise CheckpointError(f"{path}: not an acceptance head ({error}); {REMEDY}") from error
    return settings


def _with_weights(path: Location, settings: HeadSettings, weights: object) -> AcceptanceHead:
    """Return the head; it is built without memory first, since settings may claim any size."""
    if not isinstance(weights, dict):
        raise CheckpointError(f"{path}: not an acceptance head; {REMEDY}")
    check_weights(os.fspath(path), weights)
    with without_memory():
        parameters = dict(AcceptanceHead(settings).named_parameters())
    wanted = {name: tensor.shape for name, tensor in parameters.items()}
    if wanted != {name: tensor.shape for name, tensor in weights.items()}:
        raise CheckpointError(
            f"{path}: the weights do not fit the head that it describes; make it again with "
            "scripts/calibrate_head.py"
        )
    head = AcceptanceHead(settings)
    head.load_state_dict({**weights, "_extra_state": settings.to_file()})
    return head.eval().requires_grad_(False)
