"""Rows that grow, each by a number of its own. No fairseq in here."""

from __future__ import annotations

from operator import add
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.decoding.arrays import Ints, numbers, on_host
from specdec_plugins.decoding.compiled import compiled
from specdec_plugins.decoding.indices import indices, row_starts, told


class Column(NamedTuple):
    """What is kept of every row's tokens, and more of it."""

    kept: Tensor
    """``(rows, capacity, …)``, contiguous."""
    new: Tensor
    """``(rows, n, …)``."""
    before: int = 0
    """Entries of each row that stand before its first token's."""
    sources: Tensor | None = None
    """``(rows, n)`` which of the new ones are meant; None: the first ones."""


def append(columns: list[Column], lengths: list[int], counts: list[int]) -> None:
    """Keep so many ``counts`` new ones of each row, behind the ``lengths`` that there are.

    What comes behind them in a row may be written over, too.

    Raises:
        ValueError: a row has no room for them.
    """
    (_on_host if columns[0].kept.device.type == "cpu" else _elsewhere)(columns, lengths, counts)


def _on_host(columns: list[Column], lengths: list[int], counts: list[int]) -> None:
    first, where = np.arange(max(counts))[None], np.array((lengths, counts))
    end = max(map(add, lengths, counts))
    for kept, new, before, sources in columns:
        if before + end > kept.size(1):
            raise ValueError(f"{before + end} tokens in a row of {kept.size(1)}")
        taken = first if sources is None else on_host(sources)
        _copy(numbers(kept), numbers(new.contiguous()), where, before, taken)


def _elsewhere(columns: list[Column], lengths: list[int], counts: list[int]) -> None:
    most, device = max(counts), columns[0].kept.device
    # As places within all rows one after another, which are quicker to copy from and to.
    positions = told(lengths, device)[:, None] + indices(most, device)
    for kept, new, before, sources in columns:
        found = new[:, :most].flatten(0, 1)
        if sources is not None:
            taken = row_starts(*new.shape[:2], device) + sources[:, :most]
            found = new.flatten(0, 1).index_select(0, taken.flatten())
        places = row_starts(*kept.shape[:2], device) + before + positions
        kept.flatten(0, 1).index_copy_(0, places.flatten(), found)


def prepare_append() -> None:
    """Compile it, or load what was compiled, before the first batch is decoded."""
    tokens, scores = torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, 1)
    columns = [Column(kept, kept) for kept in (tokens, scores, scores[..., None])]
    append(columns, [0], [1])


@compiled
def _copy(kept: Any, new: Any, where: Ints, before: int, sources: Ints) -> None:
    """``where``: ``(2, rows)`` lengths and counts of :func:`append`; ``sources``: ``(rows, n)``, or
    ``(1, n)`` of all rows."""
    for row in range(where.shape[1]):
        begin = where[0, row] + before
        taken = sources[row if len(sources) > 1 else 0]
        for n in range(where[1, row]):
            kept[row, begin + n] = new[row, taken[n]]
