"""Files of acceptance heads."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

from specdec_plugins.checkpoints.archive import check_weights, load_archive
from specdec_plugins.checkpoints.loading import load_state, save_state
from specdec_plugins.files.errors import CheckpointError, ConfigError
from specdec_plugins.files.output import Location
from specdec_plugins.host.checkpoints import without_memory
from specdec_plugins.models.acceptance_head import AcceptanceHead, HeadSettings, fingerprint
from specdec_plugins.models.drafter import Drafter

HEAD_FILE = "acceptance_head.pt"
REMEDY = "train one with scripts/train_head.sh and scripts/calibrate_head.py"
PREFIX = "head."


def find_head(drafter_path: Location, rule: str) -> Path | None:
    """Return the head beside a drafter's checkpoint, or None.

    A head for the rule, e.g. ``acceptance_head.relaxed.pt``, comes before the general one.
    """
    names = ([] if rule == "strict" else [f"acceptance_head.{rule}.pt"]) + [HEAD_FILE]
    paths = (Path(drafter_path).parent / name for name in names)
    return next((path for path in paths if path.is_file()), None)


def save_head(path: Location, head: AcceptanceHead) -> int:
    """Write a head with weights in float16, and return the file's size in bytes."""
    weights = {name: tensor.detach().half().cpu() for name, tensor in head.named_parameters()}
    return save_state({"acceptance_head": head.settings.to_file(), "model": weights}, path)


def load_head(
    path: Location, drafter: Drafter, scoring: Mapping[str, object], block_size: int | None = None
) -> AcceptanceHead:
    """Read a head, frozen, in float32 on the CPU.

    Args:
        drafter: the drafter whose states the head reads, in the precision of its checkpoint.
        scoring: the acceptance to predict; see
            :attr:`~specdec_plugins.decoding.acceptance.Scoring.values`.
        block_size: None for the drafter's.
    """
    state = load_archive(path)
    settings = _settings(path, state.get("acceptance_head"))
    if settings.drafter != fingerprint(drafter):
        raise CheckpointError(
            f"{path}: trained for another drafter; train one for this drafter with "
            "scripts/train_head.sh"
        )
    names = ("rule_temperature", "repetition_penalty")
    trained = settings.rule | {name: getattr(settings, name) for name in names}
    if trained != scoring:
        raise CheckpointError(
            f"{path}: trained for other acceptance than {_flags(scoring)}; give "
            f"{_flags(trained)}, or train one with scripts/train_head.sh"
        )
    if (block_size or drafter.block_size) > settings.block_size:
        raise CheckpointError(
            f"{path}: trained for blocks of {settings.block_size}; give --block-size "
            f"{settings.block_size} or less"
        )
    return _with_weights(path, settings, state.get("model"))


def load_trained_head(path: Location) -> tuple[AcceptanceHead, dict[str, Namespace]]:
    """Return the head of a checkpoint of ``fairseq-train``, and the checkpoint's ``cfg``."""
    state = load_state(path)
    settings = _settings(path, state["model"].get(f"{PREFIX}_extra_state"))
    weights = {
        name.removeprefix(PREFIX): value
        for name, value in state["model"].items()
        if not name.endswith("_extra_state")
    }
    return _with_weights(path, settings, weights), state["cfg"]


def _flags(scoring: Mapping[str, object]) -> str:
    """Return command-line flags, e.g. ``--beta 3 --tau 1.0``."""
    named = [
        (n.removeprefix("rule_").replace("_", "-"), value) for n, value in sorted(scoring.items())
    ]
    return " ".join(f"--{n}" if value is True else f"--{n} {value}" for n, value in named)


def _settings(path: Location, saved: object) -> HeadSettings:
    try:
        if not isinstance(saved, dict):
            raise ConfigError("it has no settings")
        return HeadSettings.from_file(saved)
    except ValueError as error:
        fault = ascii(str(error))[1:-1][:200]
        raise CheckpointError(f"{path}: not an acceptance head ({fault}); {REMEDY}") from error


def _with_weights(path: Location, settings: HeadSettings, weights: object) -> AcceptanceHead:
    """Return the head; it is built without memory, since settings may claim any size."""
    if not isinstance(weights, dict):
        raise CheckpointError(f"{path}: not an acceptance head; {REMEDY}")
    check_weights(os.fspath(path), weights)
    with without_memory():
        head = AcceptanceHead(settings)
    try:
        head.load_state_dict({**weights, "_extra_state": settings.to_file()}, assign=True)
    except RuntimeError as error:
        raise CheckpointError(
            f"{path}: the weights do not fit the head that it describes; make it again with "
            "scripts/calibrate_head.py"
        ) from error
    return head.float().eval().requires_grad_(False)
