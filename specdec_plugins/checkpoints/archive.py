"""Read files of ``torch.save`` that may come from strangers.

Such a file is a pickle, which can call any function while it is read. So it is always read with
``weights_only``, which refuses all globals but those of :func:`safe_globals`, and after its
checksums, which torch ignores.
"""

from __future__ import annotations

import argparse
import codecs
import collections
import logging
import os
import pickle
import re
import zipfile
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import omegaconf
import torch
from omegaconf.base import ContainerMetadata, Metadata
from torch import Tensor

from specdec_plugins.files.errors import CheckpointError
from specdec_plugins.files.output import Location

logger = logging.getLogger(__name__)

AGAIN = "copy or download it again"
SAVED = "give a checkpoint that fairseq-train has saved"
DAMAGED = f"not a checkpoint, or truncated or damaged; {AGAIN}"
#: The beginning of torch's archives; files without it are pickles of torch before 1.6.
ZIP_MAGIC = b"PK\x03\x04"
DTYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)


def load_archive(path: Location) -> dict[str, Any]:
    """Read a file of ``torch.save`` that holds a dictionary, onto the CPU."""
    name = os.fspath(path)
    if not os.path.isfile(name):
        fault = "no ordinary file" if os.path.exists(name) else "no such file"
        raise CheckpointError(f"{name}: {fault}; name a checkpoint (.pt), and only one")
    with open(name, "rb") as file:
        is_zip = file.read(len(ZIP_MAGIC)) == ZIP_MAGIC
    register_safe_globals()
    storages: list[Any] = []
    left = os.path.getsize(name)

    def blank(storage: Any, _location: str) -> Any:
        """Fill a storage of an old pickle before it is read, if the file can hold as much."""
        nonlocal left
        left -= storage.nbytes()
        if left < 0:
            raise RuntimeError("tensors are larger than the file")
        storages.append(storage.fill_(255))
        return storage

    try:
        if is_zip:
            _check_entries(name)
            state = torch.load(name, map_location="cpu", weights_only=True)
        else:
            state = torch.load(name, map_location=blank, weights_only=True)
    except Exception as error:  # a damaged file can raise anything at all
        forbidden = re.search(r"GLOBAL ([\w.]+)", str(error))
        fault = DAMAGED
        if forbidden:
            fault = f"refused: would need to run {forbidden[1]}; fairseq's do not"
        raise CheckpointError(f"{name}: {fault}") from error
    # An old pickle may lack numbers of its tensors, which would then be uninitialised memory.
    tensors = (torch.empty(0, dtype=torch.uint8).set_(storage) for storage in storages)
    if any(len(tensor) and bool((tensor == 255).all()) for tensor in tensors):
        raise CheckpointError(f"{name}: {DAMAGED}")
    if not isinstance(state, dict):
        raise CheckpointError(
            f"{name}: not a fairseq checkpoint: it holds a {type(state).__name__}; {SAVED}"
        )
    return state


def check_weights(name: str, weights: Mapping[object, object]) -> None:
    """Check that the weights of the file ``name`` are finite numbers which the file holds."""
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
    # An expanded tensor may be of any size.
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        return f"is larger than what the file holds of it; {AGAIN}"
    if value.is_floating_point() and not bool(torch.isfinite(value).all()):
        return "holds infinite values or NaN; training went wrong, or the file is damaged"
    return None


def _check_entries(name: str) -> None:
    with zipfile.ZipFile(name) as archive:
        entries = archive.infolist()
        # torch stores each entry once, uncompressed; others might expand to any size.
        stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
        size = sum(entry.file_size for entry in entries)
        unique = len({entry.filename for entry in entries}) == len(entries)
        plain = stored and unique and size <= os.path.getsize(name)
        if not plain or archive.testzip() is not None:
            raise zipfile.BadZipFile


def one_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the error's kind."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def shown(value: object) -> str:
    """Return a stranger's value in at most 40 printable characters."""
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


def register_safe_globals() -> None:
    """Allow the contents of fairseq's checkpoints in every restricted ``torch.load``.

    fairseq does not set ``weights_only``, and torch then restricts reading: training could not be
    resumed, nor could ``fairseq-generate`` load a model.
    """
    torch.serialization.add_safe_globals(list(safe_globals()))


class _Dtype:
    """A stand-in for ``numpy.dtype``: plain numbers only."""

    def __init__(self, code: str, *_: object) -> None:
        if not re.fullmatch(r"[biufc]\d+", code):
            raise pickle.UnpicklingError(f"a numpy type that is not a number: {code}")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.dtype = self.dtype.newbyteorder(state[1])


class _Array(np.ndarray):
    """A stand-in for ``numpy.ndarray``; saved again, it is an ordinary array.

    The real class would take bytes for Python objects, that is, for any pointers.
    """

    def __new__(cls, *_: object) -> _Array:
        return super().__new__(cls, (0,), np.int8)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        version, shape, kind, fortran_order, data = state
        super().__setstate__((version, shape, kind.dtype, fortran_order, data))

    def __reduce__(self) -> str | tuple[object, ...]:
        return np.asarray(self).__reduce__()


@cache
def safe_globals() -> tuple[Any, ...]:
    """Return the allow-list: containers, nodes of configurations and numbers."""
    nodes = omegaconf.nodes
    stand_ins: dict[str, Any] = {"numpy.dtype": _Dtype, "numpy.ndarray": _Array}
    for module in ("numpy.core.multiarray", "numpy._core.multiarray"):  # numpy 1 and numpy 2
        stand_ins[f"{module}._reconstruct"] = lambda *_: _Array()
        stand_ins[f"{module}.scalar"] = lambda kind, data: np.frombuffer(data, kind.dtype, 1)[0]
    return (
        argparse.Namespace,
        collections.OrderedDict,
        collections.defaultdict,
        Any,
        *(bool, bytes, dict, float, int, list, set, str, tuple),
        *(omegaconf.DictConfig, omegaconf.ListConfig, ContainerMetadata, Metadata),
        *(nodes.AnyNode, nodes.BooleanNode, nodes.FloatNode, nodes.IntegerNode, nodes.StringNode),
        codecs.encode,  # bytes are pickled as text and the name of its encoding
        # Meters keep numpy values: BLEU's counts, for one.
        *((stand_in, name) for name, stand_in in stand_ins.items()),
    )
