"""Arrays on the host, by what is in them. No fairseq in here."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Scores = NDArray[np.float32]
Bools = NDArray[np.bool_]
Floating = NDArray[np.floating[Any]]
"""Numbers in the precision of a model."""


def is_host(device: torch.device) -> bool:
    """Return whether compiled code can read what is there."""
    return device.type == "cpu"


def wait_for(device: torch.device) -> None:
    """Let the host wait until a GPU has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def numbers(x: Tensor) -> Any:
    """Return a tensor of the host as an array, to be copied from and to; numpy has no bfloat16, in
    whose place come whole numbers as wide."""
    return (x.view(torch.int16) if x.element_size() == 2 else x).numpy()


def on_host(x: Tensor) -> Any:
    """Return a tensor as an array that compiled code knows the layout of; a GPU is waited for."""
    return np.ascontiguousarray((x if x.device.type == "cpu" else x.cpu()).numpy())
