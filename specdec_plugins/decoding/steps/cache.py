"""Keys and values of committed tokens, and masks over them. No fairseq in here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.decoding import kernels
from specdec_plugins.decoding.kernels import Bools, Floating, Ints
from specdec_plugins.engines.compiling import compiled
from specdec_plugins.engines.step import Results, Run
from specdec_plugins.models.layers import DecoderLayerRunner, additive, lowest
from specdec_plugins.models.rows import select_rows


def room(positions: int) -> int:
    """Return the positions of a cache that needs this many; it grows by 16."""
    return -(-positions // 16) * 16


def empty_cache(
    layers: Sequence[DecoderLayerRunner],
    rows: int,
    width: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """Return zeros: a masked position has weight 0, and 0 x NaN would be NaN."""
    return torch.zeros(
        (len(layers), 2, rows, layers[0].heads, width, layers[0].head_dim),
        dtype=dtype,
        device=device,
    )


class KVCache:
    """Keys and values of all layers, ``(layers, 2, rows, heads, width, dim)``.

    The caller knows the number of positions in use of each row. The others hold zeros, or old
    values that nobody reads.
    """

    def __init__(self, layers: Sequence[DecoderLayerRunner], whole: bool) -> None:
        """``whole``: the engine's ``whole_cache``."""
        self._whole = whole
        self._empty = partial(empty_cache, layers)
        # An engine keeps its binding to memory that it has met.
        self._reused = lru_cache(maxsize=16)(self._empty)
        self._scatter_indices = lru_cache(maxsize=8)(partial(_scatter_indices, layers[0].heads))
        #: The number of rows in use; there may be room for more.
        self.rows = 0

    def begin(self, states: Tensor) -> None:
        """Begin a batch of the rows of the encoder's ``states`` ``(source, rows, channels)``."""
        rows = states.size(1)
        self._kind = (states.dtype, states.device)
        # Never reuse a multi-row cache: the old one may still be the source of a copy.
        self._make = self._reused if rows == 1 else self._empty
        self._hand(rows, self._make(rows, room(1), *self._kind))

    def reserve(self, longest: int, slots: int) -> int:
        """Make room for new tokens; return the number of positions that a step sees.

        ``longest``: positions that the longest row has cached.
        """
        if longest + slots > self._store.size(4):
            before = self._past
            self._hand(self.rows, self._make(self.rows, room(longest + slots), *self._kind))
            self._past[..., : before.size(4), :] = before
        return self._store.size(4) if self._whole else longest + slots

    def run(
        self, step: Run, longest: int, inputs: Sequence[object], rows: Tensor | None = None
    ) -> Results:
        """Run a step; :meth:`write` then says which of the new tokens stay cached.

        Args:
            longest: positions that the longest row has cached.
            inputs: a mask for the positions of :meth:`reserve`, new tokens ``(rows, slots)``, and
                the rest.
            rows: run over these only; None: all.
        """
        tokens = inputs[1]
        indices = None
        assert isinstance(tokens, Tensor)
        end = longest + tokens.size(1)
        past = self._past
        if self._whole:
            indices = self._scatter_indices(*tokens.shape)
            indices.numpy()[..., 2] = np.arange(longest, end)[:, None]
        else:
            past = past[..., :end, :]
        if rows is not None:
            past = past[:, :, rows]
        results = step(past, indices, *inputs)
        # The step wrote into the cache, or into a copy of its rows, which is nowhere in the cache.
        self._new = past[..., longest:end, :]
        self._first = longest if rows is None else self._store.size(4)
        return results

    def write(
        self, sources: Tensor, begins: list[int], counts: list[int], rows: list[int] | None = None
    ) -> None:
        """Cache some of the tokens of the last step.

        Args:
            sources: ``(rows, n)`` their indices in ascending order, ``counts`` of each row.
            begins: each row's position of the first one.
            rows: those of the step; None: all.
        """
        if self._new.size(4) == 1 and begins == [self._first] * len(counts):
            return  # They are where the step wrote them.
        if rows is None:
            rows = list(range(len(counts)))
        if self._store.device.type == "cpu":
            _write(
                kernels.numbers(self._store),
                kernels.numbers(self._new),
                kernels.on_host(sources),
                np.array((rows, begins, counts)),
                self._first,
            )
            return
        # Rows of fewer tokens copy more behind them, which nobody reads.
        width = max(counts)
        device = self._store.device
        index, begin = kernels.to_device([rows, begins], device).unbind()
        read, store = (x.permute(2, 4, 0, 1, 3, 5) for x in (self._new, self._store))
        taken = read[kernels.indices(len(rows), device)[:, None], sources[:, :width]]
        store[index[:, None], begin[:, None] + kernels.indices(width, device)] = taken

    def select(self, rows: list[int], width: int) -> None:
        """Go on with ``rows``, in this order; some may be left out, others repeated.

        ``width``: positions that they have cached, at most.
        """
        store = self._store
        if len(rows) > store.size(2):
            self._hand(len(rows), self._make(len(rows), store.size(4), *self._kind))
            self._past[..., :width, :] = store[:, :, rows, :, :width]
            return
        select_rows(store[..., :width, :], rows, 2)
        if len(rows) != self.rows:
            self._hand(len(rows), store)

    def _hand(self, rows: int, store: Tensor) -> None:
        """Use the first ``rows`` of ``store`` from now on."""
        self.rows = rows
        self._store = store
        # Not a view of all rows: an engine would have to bind it again.
        self._past = store if store.size(2) == rows else store[:, :, :rows]


@compiled
def _write(past: Floating, new: Floating, columns: Ints, where: Ints, first: int) -> None:
    """Copy ``columns`` ``(rows, n)`` of ``new`` to ``past``; see :meth:`KVCache.write`.

    ``where``: ``(3, rows)`` rows, begins and counts; ``first``: the position of ``new`` in
    ``past``, where no token stands before its own, or the end of ``past``.
    """
    layers, both, _, heads, _, dim = past.shape
    for i in range(where.shape[1]):
        row = where[0, i]
        begin = where[1, i]
        for n in range(where[2, i]):
            column = columns[i, n]
            if first + column == begin + n:
                continue
            for layer in range(layers):
                for which in range(both):
                    for head in range(heads):
                        for d in range(dim):
                            past[layer, which, row, head, begin + n, d] = new[
                                layer, which, i, head, column, d
                            ]


def _scatter_indices(heads: int, rows: int, slots: int) -> Tensor:
    """Return ``(rows, slots, heads, 3)`` rows and heads, and room for positions."""
    indices = torch.empty(rows, slots, heads, 3, dtype=torch.long)
    indices[..., 0] = torch.arange(rows)[:, None, None]
    indices[..., 1] = torch.arange(heads)
    return indices


def fill_mask(mask: Tensor, cached: Ints, among: Bools, first: int) -> None:
    """Fill a mask on the host, to be added to attention scores.

    Args:
        mask: ``(rows, 1, slots, width)``.
        cached: ``(rows,)`` positions that each row has cached.
        among: ``(rows, slots, slots)``, or ``(1, slots, slots)`` for all rows: the new tokens that
            each sees.
        first: the position of the first new token.
    """
    if mask.element_size() != 2:
        _fill(mask.numpy(), cached, among, first, lowest(mask.dtype))
        return
    # numpy knows no bfloat16, and few processors compute in float16.
    wide = torch.empty_like(mask, dtype=torch.float32)
    _fill(wide.numpy(), cached, among, first, lowest(mask.dtype))
    mask.copy_(wide)


@compiled
def _fill(mask: Floating, cached: Ints, among: Bools, first: int, unseen: float) -> None:
    slots = mask.shape[2]
    mask[:] = unseen
    for row in range(len(cached)):
        seen = among[row if len(among) > 1 else 0]
        for slot in range(slots):
            line = mask[row, 0, slot]
            line[: cached[row]] = 0
            for other in range(slots):
                if seen[slot, other]:
                    line[first + other] = 0


def mask_by_tensors(cached: Tensor, width: int, among: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the mask by tensor code; ``among`` may be ``(n, n)``."""
    slots = among.size(-1)
    seen = kernels.indices(width, cached.device) < cached[:, None, None]
    both = seen.expand(-1, slots, -1), among.expand(len(cached), slots, slots)
    return additive(torch.cat(both, dim=-1), dtype)[:, None]
