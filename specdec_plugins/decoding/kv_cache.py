"""A preallocated self-attention cache in which every row makes its own progress."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_plugins.decoding.indices import indices, row_starts
from specdec_plugins.models.layers import Attend, additive


class KVCache:
    """Keys and values of all layers: ``(layers, rows, capacity, 2, heads, dim)``.

    There is no length in here: a row's valid slots are what the caller's ``limits`` say. Rolling
    back is therefore free: the next step's positions overwrite what was rejected.
    """

    CHUNK = 32
    """Positions that are zeroed ahead."""

    def __init__(
        self,
        layers: int,
        rows: int,
        capacity: int,
        heads: int,
        dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.store = torch.empty(layers, rows, capacity, 2, heads, dim, dtype=dtype, device=device)
        self.rows = rows
        self.capacity = capacity
        self._starts = row_starts(rows, capacity, device)
        self._zeroed = 0

    def open(
        self,
        positions: Tensor,
        limits: Tensor,
        width: int,
        masked: bool,
        among: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> list[Attend]:
        """One attention function a layer, for one forward over new slots.

        Args:
            positions: ``(rows, slots)`` where the new keys and values are written.
            limits: ``(rows, slots)``, or one of a row: each query sees the cached positions below
                its limit.
            width: a bound on every limit, known to the host.
            masked: False where every limit equals ``width``, so that no mask is needed.
            among: ``(rows, slots, slots)`` bool: which of the new slots each query sees, whatever
                its limit.
            rows: which of the rows these are; None for all.

        Raises:
            ValueError: ``width`` is larger than the cache.
        """
        if width > self.capacity:
            raise ValueError(f"{width} positions in a cache of {self.capacity}")
        self._clear(width)
        flat = self._flat(positions, rows)
        mask = None
        if masked or among is not None:
            seen = indices(width, limits.device) < limits[..., None]
            if among is not None:
                columns = positions[:, None].expand_as(among)
                seen = seen.expand(-1, positions.size(1), -1).scatter(2, columns, among)
            mask = additive(seen[:, None], self.store.dtype)
        return [self._attend(layer, flat, mask, width, rows) for layer in self.store]

    def _clear(self, width: int) -> None:
        """Zero what is about to be read for the first time: a masked slot has weight 0, and 0 x NaN
        would be NaN. Not all of it at once: most rows end far below the capacity.
        """
        if width > self._zeroed:
            end = min(self.capacity, width + self.CHUNK)
            self.store[:, :, self._zeroed : end].zero_()
            self._zeroed = end

    def _attend(
        self, layer: Tensor, flat: Tensor, mask: Tensor | None, width: int, rows: Tensor | None
    ) -> Attend:
        def attend(query: Tensor, key_value: Tensor) -> Tensor:
            layer.flatten(0, 1).index_copy_(0, flat, key_value.flatten(0, 1))
            seen = layer[: self.rows, :width] if rows is None else layer[rows, :width]
            keys, values = seen.permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(query.transpose(1, 2), keys, values, attn_mask=mask)
            return y.transpose(1, 2).flatten(2)

        return attend

    def copy(self, sources: Tensor, targets: Tensor) -> None:
        """Copy cached positions ``(rows, slots)`` of every row to others."""
        store = self.store.flatten(1, 2)
        moved = store.index_select(1, self._flat(sources))
        store.index_copy_(1, self._flat(targets), moved)

    def _flat(self, positions: Tensor, rows: Tensor | None = None) -> Tensor:
        """Positions within all rows one after another."""
        starts = self._starts if rows is None else self._starts[rows]
        return (starts + positions).flatten()

    def keep(self, rows: Tensor, width: int) -> None:
        """Drop every row but ``rows`` (ascending); only positions below ``width`` are moved."""
        self.store[:, : len(rows), :width] = self.store[:, rows, :width]
        self.rows = len(rows)
        self._starts = self._starts[: self.rows]
