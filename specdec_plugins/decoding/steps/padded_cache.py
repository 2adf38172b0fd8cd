"""Keys and values of committed tokens, for engines that want few sizes. No fairseq in here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import add
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.decoding.arrays import Floating, Ints
from specdec_plugins.decoding.compiled import compiled
from specdec_plugins.engines.sizes import PaddedSizes
from specdec_plugins.engines.step import Results, Run
from specdec_plugins.models.layers import DecoderLayerRunner
from specdec_plugins.models.rows import keep_rows

Made = TypeVar("Made")


class Reused(Generic[Made]):
    """Tensors by size, the same again: what an engine has been handed it need not be handed once
    more. Of several rows only the last ones, which may be large."""

    def __init__(self, make: Callable[..., Made]) -> None:
        """``make``: of a number of rows, and of other sizes."""
        self._make = make
        self._of_one_row: dict[tuple[int, ...], Made] = {}
        self._of_several: dict[tuple[int, ...], Made] = {}

    def __call__(self, rows: int, *sizes: int) -> Made:
        made = self._of_one_row if rows == 1 else self._of_several
        found = made.get((rows, *sizes))
        if found is None:
            found = self._make(rows, *sizes)
            self._of_several.clear()
            made[(rows, *sizes)] = found
        return found


class PaddedKVCache:
    """Keys and values of all layers, ``(layers, 2, rows, heads, width, dim)``, as they are attended
    to: what a step reads lies where it is, and only what is then committed is written.

    There is no length in here: how many positions of a row hold something, the caller knows. The
    others hold zeros, or what an earlier batch or row has left.
    """

    def __init__(
        self, layers: Sequence[DecoderLayerRunner], dtype: torch.dtype, sizes: PaddedSizes
    ) -> None:
        shape = len(layers), layers[0].heads, layers[0].head_dim
        self.rows = 0
        """Rows, with what is padding: the first ones of all that there is room for."""
        self._sizes = sizes
        self._make = partial(_empty, shape, dtype)
        self._reused = Reused(self._make)

    @property
    def width(self) -> int:
        """Positions that a step is handed."""
        return self._past.size(4)

    def begin(self, rows: int) -> None:
        """Hold nothing, of so many rows."""
        self._hand(rows, self._room(rows, 0))

    def run(self, step: Run, mask: Tensor, *inputs: Any, rows: Tensor | None = None) -> Results:
        """The results of a step over what is cached but the new keys and values, which are kept
        until the next one.

        ``rows``: over these only; None: all.
        """
        past = self._past if rows is None else self._past[:, :, rows]
        *results, self._new = step(past, mask, *inputs)
        return tuple(results)

    def write(
        self, sources: Ints, begins: list[int], counts: list[int], rows: list[int] | None = None
    ) -> None:
        """Cache some of the tokens of the last step.

        Args:
            sources: ``(rows, n)`` which of its tokens.
            begins: where each row's first one belongs.
            counts: how many are each row's.
            rows: those that the step had; None: all.
        """
        end = max(map(add, begins, counts))
        if end > self.width:
            before = self._past
            self._hand(self.rows, self._room(self.rows, end))
            self._past[..., : before.size(4), :] = before
        where = np.array((list(range(len(counts))) if rows is None else rows, begins, counts))
        _write(self._store.numpy(), self._new.numpy(), sources, where)

    def keep(self, rows: list[int]) -> int:
        """Go on with ``rows`` only; returns how many there are then, with what is padding."""
        keep_rows(self._store, rows, 2)
        # There may be fewer: an encoder that is not fairseq's own does not pad them.
        count = min(self._sizes.rows(len(rows)), self.rows)
        if count < self.rows:
            self._hand(count, self._store)
        return count

    def _hand(self, rows: int, store: Tensor) -> None:
        """From now on hand steps the first rows of ``store``."""
        self.rows, self._store = rows, store
        # Itself, if that is all: an engine knows it again.
        self._past = store if store.size(2) == rows else store[:, :, :rows]

    def _room(self, rows: int, positions: int) -> Tensor:
        """Of several rows always another one: what was there may be on its way to it."""
        width = self._sizes.cached(positions)
        return self._reused(rows, width) if rows == 1 else self._make(rows, width)


def _empty(shape: tuple[int, int, int], dtype: torch.dtype, rows: int, width: int) -> Tensor:
    layers, heads, dim = shape
    return torch.zeros(layers, 2, rows, heads, width, dim, dtype=dtype)


@compiled
def _write(past: Floating, new: Floating, sources: Ints, where: Ints) -> None:
    """``new``: ``(layers, rows, slots, 2, heads, dim)``; ``where``: ``(3, rows)``: rows, begins and
    counts of :meth:`PaddedKVCache.write`."""
    layers, both, _, heads, _, dim = past.shape
    for i in range(where.shape[1]):
        row, begin = where[0, i], where[1, i]
        for n in range(where[2, i]):
            slot = sources[i, n]
            for layer in range(layers):
                for which in range(both):
                    for head in range(heads):
                        for d in range(dim):
                            past[layer, which, row, head, begin + n, d] = new[
                                layer, i, slot, which, head, d
                            ]
