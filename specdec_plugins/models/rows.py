"""Rows of a batch that go on without the others. No fairseq in here."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def unfinished(finished: Sequence[bool]) -> list[int]:
    """Return the unfinished rows; the last of them take the indices of finished rows, so that few
    are moved."""
    going = [row for row, done in enumerate(finished) if not done]
    late = reversed(going)
    return [next(late) if finished[index] else index for index in range(len(going))]


def select_rows(x: Tensor, rows: Sequence[int], dim: int = 0) -> Tensor:
    """Move ``rows`` of ``x`` to the first indices, in this order, and return a view of them; if
    they are repeated so that ``x`` has no room for all, return a copy."""
    if len(rows) > x.size(dim):
        return x.index_select(dim, torch.tensor(rows, device=x.device))
    moved = [(index, row) for index, row in enumerate(rows) if index != row]
    if moved:
        to, where = torch.tensor(moved).to(x.device, non_blocking=True).T
        x.index_copy_(dim, to, x.index_select(dim, where))
    return x.narrow(dim, 0, len(rows))
