"""Compiled loops over small arrays, and the arrays and index tensors that they take."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar, cast

import numba
import numpy as np
import torch
from filelock import FileLock
from numpy.typing import NDArray
from torch import Tensor

logger = logging.getLogger(__name__)
# At DEBUG they log all that is compiled, line by line, and all that is locked.
for _name in ("numba", "filelock"):
    logging.getLogger(_name).setLevel(logging.WARNING)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Scores = NDArray[np.float32]
Bools = NDArray[np.bool_]
#: Numbers in the precision of a model.
Floating = NDArray[np.floating[Any]]
Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compile a function of numbers and arrays at its first call, and store it in numba's cache."""
    try:
        kernel: Any = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:
        # No folder can be written to: each process compiles for itself.
        return cast(Function, numba.njit(nogil=True)(function))
    cache = kernel._cache
    load = cache.load_overload
    save = cache.save_overload

    def load_or_compile(*overload: object) -> object:
        try:
            return load(*overload)
        except Exception as error:  # whatever a damaged pickle raises
            logger.info("%s: cannot be read (%s); compiling anew", cache.cache_path, error)
            with suppress(OSError):
                cache.flush()
            return None

    def save_alone(*overload: object) -> None:
        # numba reads its index, adds to it and writes it back. If two processes do so at once, one
        # may later load the other's code for arguments of other types, and crash.
        try:
            os.makedirs(cache.cache_path, exist_ok=True)
            with FileLock(os.path.join(cache.cache_path, "specdec.lock")):
                save(*overload)
        except Exception as error:  # also of an index that another process is damaging
            logger.warning("%s: cannot be written (%s); not kept", cache.cache_path, error)

    cache.load_overload = load_or_compile
    cache.save_overload = save_alone
    return cast(Function, kernel)


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has run all that was launched."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def numbers(x: Tensor) -> Any:
    """Return a host tensor as an array; integers stand for bfloat16, which numpy has not."""
    return (x.view(torch.int16) if x.element_size() == 2 else x).numpy()


def on_host(x: Tensor) -> Any:
    """Return a tensor as a contiguous array; this waits for a GPU."""
    return np.ascontiguousarray(x.cpu().numpy())


def to_device(counts: list[int] | list[list[int]], device: torch.device) -> Tensor:
    """Return integers as a tensor on a device, without waiting for it."""
    return torch.tensor(counts, dtype=torch.long).to(device, non_blocking=True)


@cache
def indices(count: int, device: torch.device) -> Tensor:
    """Return ``(count,)`` 0, 1, 2, …, which must not be changed."""
    # Also usable outside of inference mode.
    with torch.inference_mode(False):
        return torch.arange(count, device=device)
