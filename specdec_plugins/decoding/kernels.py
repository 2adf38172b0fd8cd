"""The arrays and index tensors that compiled loops take."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Scores = NDArray[np.float32]
Bools = NDArray[np.bool_]
#: Numbers in the precision of a model.
Floating = NDArray[np.floating[Any]]


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has run all that was launched."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def numbers(x: Tensor) -> Any:
    """Return a host tensor as an array; integers stand for bfloat16, which numpy has not."""
    if x.element_size() == 2:
        x = x.view(torch.int16)
    return x.numpy()


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
