"""The acceptance head's file: what is in it, which one a drafter has, when it is refused."""

from __future__ import annotations

import os
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

import torch

from specdec_plugins.checkpoints import CheckpointError, check_file, load_state
from specdec_plugins.decoding.acceptance import AcceptanceRule
from specdec_plugins.decoding.controllers import ControllerOptions, Head
from specdec_plugins.decoding.linear_head import LinearHead
from specdec_plugins.decoding.probabilities import Sampling
from specdec_plugins.models.acceptance_head import AcceptanceHead, HeadSettings, fingerprint
from specdec_plugins.models.drafter import Drafter

HEAD_FILE = "acceptance_head.pt"
PREFIX = "head."

Location = str | os.PathLike[str]


def head_rule(settings: HeadSettings) -> AcceptanceRule:
    """The acceptance rule that a head was trained for."""
    sampling = Sampling(settings.sampling_topk, settings.sampling_topp)
    return AcceptanceRule(settings.beta, settings.tau, sampling if settings.sampling else None)


def _described(rule: AcceptanceRule, temperature: float) -> str:
    """A rule and the temperature, where that matters to it and is not 1."""
    scaled = rule.name != "strict" and temperature != 1
    return f"{rule} at temperature {temperature:g}" if scaled else str(rule)


def find_head(drafter_path: Location, rule: AcceptanceRule) -> Path | None:
    """The head that lies beside a drafter's checkpoint, if there is one; unless acceptance is
    strict, first of all the one of the rule's name, ``acceptance_head.relaxed.pt`` or
    ``acceptance_head.sampling.pt``."""
    names = [HEAD_FILE]
    if rule.name != "strict":
        names.insert(0, f"acceptance_head.{rule.name}.pt")
    paths = (Path(drafter_path).parent / name for name in names)
    return next((path for path in paths if path.is_file()), None)


def save_head(path: Location, head: AcceptanceHead) -> int:
    """Write a head, its weights in float16, with its settings.

    Returns:
        The size of the file in bytes.

    Raises:
        CheckpointError: the file cannot be written; one of that name is left as it was.
    """
    weights = {name: tensor.detach().half().cpu() for name, tensor in head.named_parameters()}
    partial = f"{os.fspath(path)}.part"
    try:
        torch.save({"acceptance_head": asdict(head.settings), "model": weights}, partial)
        os.replace(partial, path)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{path}: cannot be written ({error})") from error
    return os.path.getsize(path)


def load_head(
    path: Location,
    drafter: Drafter,
    rule: AcceptanceRule,
    block_size: int,
    temperature: float = 1.0,
) -> AcceptanceHead:
    """Read the head of a file, frozen, in float32 on the CPU.

    Args:
        drafter: the drafter it is to read, in the precision that it was loaded in.
        rule: the acceptance rule it is to predict.
        block_size: the most slots that it will be asked about.
        temperature: what the scores that the rule judges are divided by.

    Raises:
        CheckpointError: the file cannot be read or is no head, or the head is one for another
            drafter, rule or temperature, or for smaller blocks.
    """
    state = _read(path)
    settings = _settings(path, state.get("acceptance_head"))
    if settings.drafter != fingerprint(drafter):
        raise CheckpointError(
            f"{path}: trained for another drafter; train one for this drafter with "
            "scripts/train_head.sh"
        )
    theirs = head_rule(settings)
    trained = _described(theirs, settings.rule_temperature)
    asked = _described(rule, temperature)
    if trained != asked:
        scale = "" if theirs.name == "strict" else f" --temperature {settings.rule_temperature:g}"
        instead = " instead of --sampling" if rule.sampling and not theirs.sampling else ""
        raise CheckpointError(
            f"{path}: trained for {trained} acceptance, not {asked}; give {theirs.flags}{scale}"
            f"{instead}, or train one with your flags with scripts/train_head.sh"
        )
    if block_size > settings.block_size:
        raise CheckpointError(
            f"{path}: trained for blocks of {settings.block_size}; give --block-size "
            f"{settings.block_size} or less"
        )
    head = AcceptanceHead(settings)
    return _with_weights(path, head, state["model"])


def controller_head(
    options: ControllerOptions,
    drafter: Drafter,
    rule: AcceptanceRule,
    block_size: int | None,
    device: torch.device | str,
    drafter_path: Location | None = None,
    temperature: float = 1.0,
) -> Head | None:
    """The head that a controller is to use: the one given, or, where it cannot do without, the one
    beside the drafter.

    Args:
        device: where the drafter's states will be.

    Raises:
        CheckpointError: as :func:`load_head`.
    """
    path: Location | None = options.acceptance_head
    if path is None and options.needs_head and drafter_path:
        path = find_head(drafter_path, rule)
    if path is None or not options.reads_head:
        return None
    head = load_head(path, drafter, rule, block_size or drafter.block_size, temperature)
    if torch.device(device).type == "cpu" and not head.settings.layers:
        return LinearHead(head)
    return head.to(device)


def load_trained_head(path: Location) -> tuple[AcceptanceHead, Any]:
    """The head of a checkpoint of ``fairseq-train``, and the checkpoint's ``cfg``.

    Raises:
        CheckpointError: the file cannot be read or is a checkpoint of something else.
    """
    state = load_state(path)
    saved = state["model"].get(f"{PREFIX}_extra_state")
    head = AcceptanceHead(_settings(path, saved))
    weights = {
        name.removeprefix(PREFIX): value
        for name, value in state["model"].items()
        if not name.endswith("_extra_state")
    }
    return _with_weights(path, head, weights), state["cfg"]


def _read(path: Location) -> dict[str, Any]:
    check_file(os.fspath(path))
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can raise anything at all
        raise CheckpointError(
            f"{path}: not an acceptance head, or damaged; make it with scripts/calibrate_head.py"
        ) from error
    return state if isinstance(state, dict) else {}


def _settings(path: Location, saved: Any) -> HeadSettings:
    names = {field.name for field in fields(HeadSettings)}
    needed = {field.name for field in fields(HeadSettings) if field.default is MISSING}
    if not isinstance(saved, dict) or not needed <= set(saved) <= names:
        raise CheckpointError(
            f"{path}: not an acceptance head; train one with scripts/train_head.sh and "
            "scripts/calibrate_head.py"
        )
    return HeadSettings(**saved)


def _with_weights(path: Location, head: AcceptanceHead, weights: Any) -> AcceptanceHead:
    try:
        head.load_state_dict({**weights, "_extra_state": asdict(head.settings)})
    except (RuntimeError, TypeError) as error:
        raise CheckpointError(
            f"{path}: the weights do not fit the head that it describes; make it again with "
            "scripts/calibrate_head.py"
        ) from error
    return head.eval().requires_grad_(False)
