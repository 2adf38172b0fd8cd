"""Keys and values of committed tokens. No fairseq in here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import add
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.decoding.kernels import (
    Floating,
    Ints,
    compiled,
    indices,
    is_host,
    numbers,
    on_host,
    to_device,
)
from specdec_plugins.engines.sizes import Sizes
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
        self._of_one_row: dict[tuple[object, ...], Made] = {}
        self._of_several: dict[tuple[object, ...], Made] = {}

    def __call__(self, rows: int, *sizes: object) -> Made:
        made = self._of_one_row if rows == 1 else self._of_several
        found = made.get((rows, *sizes))
        if found is None:
            found = self._make(rows, *sizes)
            self._of_several.clear()
            made[(rows, *sizes)] = found
        return found


class KVCache:
    """Keys and values of all layers, ``(layers, 2, rows, heads, width, dim)``, as they are attended
    to: what a step reads lies where it is, and only what is then committed is kept.

    There is no length in here: how many positions of a row hold something, the caller knows. The
    others hold zeros, or what an earlier step, batch or row has left, which nobody reads.
    """

    def __init__(self, layers: Sequence[DecoderLayerRunner], sizes: Sizes) -> None:
        """``sizes``: the engine's."""
        self._shape = len(layers), layers[0].heads, layers[0].head_dim
        self._sizes = sizes
        self._reused: dict[torch.dtype, Reused[Tensor]] = {}
        self.rows = 0
        """Rows, with what is padding: the first ones of all that there is room for."""

    def begin(self, states: Tensor) -> None:
        """Hold nothing, of the rows of the encoder's ``states`` ``(source, rows, channels)``."""
        make = partial(_empty, self._shape, states.dtype, states.device)
        reused = self._reused.setdefault(states.dtype, Reused(make))
        # Of several rows always another one: what was there may be on its way to it.
        rows = states.size(1)
        self._make: Callable[[int, int], Tensor] = reused if rows == 1 else make
        self._hand(rows, self._make(rows, self._sizes.room(0)))

    def width(self, longest: int) -> int:
        """Positions that a step is handed where the longest row has cached so many."""
        return longest if self._sizes.exact else self._store.size(4)

    def run(
        self, step: Run, longest: int, mask: Tensor | None, *inputs: Any, rows: Tensor | None = None
    ) -> Results:
        """Return the results of a step over what is cached but the new keys and values, which are
        kept until the next one.

        Args:
            longest: how many positions the longest row has cached.
            mask: as of a step, for :meth:`width` positions.
            inputs: new tokens ``(rows, slots)`` first.
            rows: over these only; None: all.
        """
        past = self._past
        if self._sizes.exact:
            end = longest + inputs[0].size(1)
            self._grow(end)
            past = self._past[..., :end, :]
        past = past if rows is None else past[:, :, rows]
        *results, new = step(past, mask, *inputs)
        self._new, self._at, self._in_place = new, 0, False
        if self._sizes.exact:
            # Where it has been written to.
            self._in_place = rows is None
            self._new, self._at = self._store if rows is None else past, longest
        return tuple(results)

    def write(
        self, sources: Tensor, begins: list[int], counts: list[int], rows: list[int] | None = None
    ) -> None:
        """Cache some of the tokens of the last step.

        Args:
            sources: ``(rows, n)`` which of its tokens, each after the one before it.
            begins: where each row's first one belongs.
            counts: how many are each row's.
            rows: those that the step had; None: all.
        """
        self._grow(max(map(add, begins, counts)))
        where = (list(range(len(counts))) if rows is None else rows, begins, counts)
        columns = sources + self._at if self._at else sources
        if is_host(self._store.device):
            arrays = numbers(self._store), numbers(self._new), on_host(columns)
            _write(*arrays, np.array(where), self._in_place)
        else:
            _write_elsewhere(self._store, self._new, columns, where)

    def keep(self, rows: list[int], width: int) -> int:
        """Go on with ``rows`` only, of which at most ``width`` positions are cached; returns how
        many there are then, with what is padding."""
        keep_rows(self._store[..., :width, :], rows, 2)
        # There may be fewer: an encoder that is not fairseq's own does not pad them.
        count = min(self._sizes.rows(len(rows)), self.rows)
        if count < self.rows:
            self._hand(count, self._store)
        return count

    def _grow(self, positions: int) -> None:
        """See to it that there is room for so many."""
        if positions > self._store.size(4):
            before = self._past
            self._hand(self.rows, self._make(self.rows, self._sizes.room(positions)))
            self._past[..., : before.size(4), :] = before

    def _hand(self, rows: int, store: Tensor) -> None:
        """Hand steps the first rows of ``store`` from now on."""
        self.rows, self._store = rows, store
        # Itself, if that is all: an engine knows it again.
        self._past = store if store.size(2) == rows else store[:, :, :rows]


def _empty(
    shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device, rows: int, width: int
) -> Tensor:
    """Zeros: a masked position has weight 0, and 0 x NaN would be NaN."""
    layers, heads, dim = shape
    return torch.zeros(layers, 2, rows, heads, width, dim, dtype=dtype, device=device)


Where = tuple[list[int], list[int], list[int]]
"""Rows, begins and counts of :meth:`KVCache.write`."""


def _write_elsewhere(past: Tensor, new: Tensor, columns: Tensor, where: Where) -> None:
    # More than what is kept, behind it, where nobody reads.
    most, device = max(where[2]), past.device
    rows, begins = to_device([where[0], where[1]], device).unbind()
    taken = new.permute(2, 4, 0, 1, 3, 5)[indices(len(rows), device)[:, None], columns[:, :most]]
    places = begins[:, None] + indices(most, device)
    past.permute(2, 4, 0, 1, 3, 5)[rows[:, None], places] = taken


@compiled
def _write(past: Floating, new: Floating, columns: Ints, where: Ints, in_place: bool) -> None:
    """
    Args:
        past: ``(layers, 2, rows, heads, width, dim)``.
        new: of the same shape but for rows and width.
        columns: ``(rows, n)`` which positions of ``new``; of each row they increase.
        where: ``(3, rows)`` rows, begins and counts of :meth:`KVCache.write`.
        in_place: ``new`` is ``past``; what is taken stands behind where it belongs, or there.
    """
    layers, both, _, heads, _, dim = past.shape
    for i in range(where.shape[1]):
        row, begin = where[0, i], where[1, i]
        for n in range(where[2, i]):
            column = columns[i, n]
            if in_place and column == begin + n:
                continue
            for layer in range(layers):
                for which in range(both):
                    for head in range(heads):
                        for d in range(dim):
                            past[layer, which, row, head, begin + n, d] = new[
                                layer, which, i, head, column, d
                            ]
