"""Small index tensors, made once: at small sizes a step is bound by calls, not by arithmetic."""

from __future__ import annotations

from functools import cache, lru_cache

import torch
from torch import Tensor


@cache
def indices(count: int, device: torch.device) -> Tensor:
    """``(count,)`` 0, 1, 2, …; not to be changed. Kept for good: what was recorded reads it."""
    # It may be asked for in inference mode first, and then outside of it.
    with torch.inference_mode(False):
        return torch.arange(count, device=device)


@lru_cache(maxsize=4096)
def row_starts(rows: int, capacity: int, device: torch.device) -> Tensor:
    """``(rows, 1)`` where each row begins if all, of ``capacity``, stand one after another; not to
    be changed."""
    with torch.inference_mode(False):
        return torch.arange(rows, device=device)[:, None] * capacity


def told(counts: list[int] | list[list[int]], device: torch.device) -> Tensor:
    """Return what the host knows, as a tensor; the host does not wait for it."""
    return torch.tensor(counts).to(device, non_blocking=True)
