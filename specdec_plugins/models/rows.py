"""Rows of a batch that go on without the others. No fairseq in here."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def unfinished(finished: Sequence[bool]) -> list[int]:
    """Return the rows that are not finished: the last of them in the places of those that are, so
    that few are moved."""
    going = [row for row, done in enumerate(finished) if not done]
    late = reversed(going)
    return [next(late) if finished[place] else place for place in range(len(going))]


def keep_rows(x: Tensor, rows: Sequence[int], dim: int = 0, count: int | None = None) -> Tensor:
    """Return the first ``count`` rows of ``x``, in which ``rows`` have been put, in this order.

    ``x`` is written to, of which no two entries may be the same memory, and what is returned is a
    view of it; only what is to stand elsewhere is moved. ``count``: as many as ``rows``, or more,
    which hold whatever.
    """
    moved = [(place, row) for place, row in enumerate(rows) if place != row]
    if moved:
        to, where = torch.tensor(moved).to(x.device, non_blocking=True).T
        x.index_copy_(dim, to, x.index_select(dim, where))
    return x.narrow(dim, 0, len(rows) if count is None else count)
