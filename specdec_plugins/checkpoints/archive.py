"""Read files of ``torch.save`` that may come from anybody.

Such a file is a pickle, which can name any function to be called while it is read. torch's
``weights_only`` reading refuses globals that are not on a list
(:mod:`specdec_plugins.checkpoints.safe_globals`); this module reads only in that way, on every
torch, and finds damage by the archive's checksums, which torch does not look at.
"""

from __future__ import annotations

import logging
import os
import pickle
import re
import zipfile
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from specdec_plugins.checkpoints.safe_globals import register_safe_globals
from specdec_plugins.files.errors import CheckpointError

logger = logging.getLogger(__name__)

AGAIN = "copy or download it again"
ZIP_MAGIC = b"PK\x03\x04"
"""The beginning of torch's archives; files without it are pickles of torch before 1.6."""

DTYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)


def load_archive(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a file of ``torch.save`` that holds a dictionary, onto the CPU.

    Raises:
        CheckpointError: the file is missing, unreadable, damaged, holds something else, or would
            need to run something while it is read. Nothing of it has been run then.
    """
    name = os.fspath(path)
    zipped = _check_file(name)
    register_safe_globals()
    storages: list[Any] = []
    left = os.path.getsize(name)

    def blank(storage: Any, location: str) -> Any:
        """Fill a storage of an old pickle before it is read, if the file can hold so much."""
        nonlocal left
        left -= storage.nbytes()
        if left < 0:
            raise RuntimeError("tensors are larger than the file")
        storages.append(storage.fill_(255))
        return storage

    try:
        state = torch.load(name, map_location="cpu" if zipped else blank, weights_only=True)
    except Exception as error:  # a damaged file can raise anything at all
        raise CheckpointError(f"{name}: {_explain(error)}") from error
    # An old pickle may name tensors whose numbers it does not hold: they would be memory as it was.
    tensors = (torch.empty(0, dtype=torch.uint8).set_(storage) for storage in storages)
    if any(len(tensor) and bool((tensor == 255).all()) for tensor in tensors):
        raise CheckpointError(f"{name}: {DAMAGED}")
    if not isinstance(state, dict):
        raise CheckpointError(
            f"{name}: not a fairseq checkpoint: it holds a {type(state).__name__}; give a "
            "checkpoint that fairseq-train has saved"
        )
    return state


def check_weights(name: str, weights: Mapping[object, object]) -> None:
    """Refuse weights of the file ``name`` that are not finite numbers which it really holds.

    Raises:
        CheckpointError: a weight is not.
    """
    for key, value in weights.items():
        if not isinstance(key, str):
            raise CheckpointError(f"{name}: a weight's name is a {type(key).__name__}; {AGAIN}")
        if not key.endswith("_extra_state") and (fault := _weight_fault(value)):
            raise CheckpointError(f"{name}: weight {key[:80]!a} {fault}")


def _weight_fault(value: object) -> str | None:
    if not isinstance(value, Tensor):
        return f"is a {type(value).__name__}, not a tensor; {AGAIN}"
    plain = value.layout == torch.strided and value.device.type == "cpu"
    if not plain or value.is_nested or value.dtype not in DTYPES:
        return "is no plain tensor of numbers; save the model as fairseq-train does"
    # A tensor may repeat a few numbers to any size.
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        return f"is larger than what the file holds of it; {AGAIN}"
    if value.is_floating_point() and not bool(torch.isfinite(value).all()):
        return "holds infinite values or NaN; training went wrong, or the file is damaged"
    return None


def _check_file(name: str) -> bool:
    """Refuse a file that is unreadable or damaged; return whether it is a zip archive."""
    if os.path.exists(name) and not os.path.isfile(name):
        raise CheckpointError(f"{name}: is no ordinary file; name a checkpoint file (.pt)")
    try:
        with open(name, "rb") as file:
            zipped = file.read(len(ZIP_MAGIC)) == ZIP_MAGIC
        fault = _archive_fault(name) if zipped else None
    except FileNotFoundError:
        if os.pathsep in name:
            raise CheckpointError(
                f"{name}: names several models; an ensemble cannot be verified with: distil it "
                "into one model (docs/verifiers.md), or name one of them"
            ) from None
        raise CheckpointError(f"{name}: no such file; check the path") from None
    except OSError as error:
        raise CheckpointError(f"{name}: cannot be read ({error.strerror or error})") from error
    if fault:
        raise CheckpointError(f"{name}: {fault}")
    return zipped


DAMAGED = f"not a checkpoint, or truncated or damaged; {AGAIN}"


def _archive_fault(name: str) -> str | None:
    try:
        with zipfile.ZipFile(name) as archive:
            entries = archive.infolist()
            names = {entry.filename for entry in entries}
            # torch stores its entries as they are, once each: anything else may be any size.
            stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
            size = sum(entry.file_size for entry in entries)
            if not stored or len(names) < len(entries) or size > os.path.getsize(name):
                return f"is no archive as torch writes it; {AGAIN}"
            damaged = archive.testzip()
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError):
        return DAMAGED
    return damaged and f"damaged: {damaged!a} in it does not fit its checksum; {AGAIN}"


def _explain(error: Exception) -> str:
    if isinstance(error, (pickle.UnpicklingError, RuntimeError)):
        forbidden = re.search(r"GLOBAL ([\w.]+)", str(error))
        if forbidden:
            return (
                f"refused: would need to run {forbidden[1]}; "
                "checkpoints of fairseq-train do not: get the file from its author again"
            )
    return DAMAGED


def one_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the error's kind."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def shown(value: object) -> str:
    """Return a value of somebody else's, in at most 40 characters that a terminal can show."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    if not isinstance(value, (str, int, float)):
        return f"a {type(value).__name__}"
    text = ascii(value[:80] if isinstance(value, str) else value)
    return text if len(text) <= 40 else f"{text[:37]}..."


@cache
def warn_once(message: str) -> None:
    """Warn once, however often a file is read."""
    logger.warning("%s", message)
