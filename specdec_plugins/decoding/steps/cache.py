"""Keys and values of committed tokens. No fairseq in here."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_plugins.decoding.indices import indices, row_starts
from specdec_plugins.models.layers import additive
from specdec_plugins.models.rows import keep_rows


class KVCache:
    """Keys and values of all layers: ``(layers, rows, capacity, 2, heads, dim)``.

    A step is handed what is cached with room for its new tokens behind it (:meth:`reserve`), and
    fills the room. Only what is then committed is written where it belongs (:meth:`write`). There
    is no length in here: how many positions of a row hold something, the caller knows.
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
        self._zeroed = 0

    def reserve(self, width: int, slots: int, rows: Tensor | None = None) -> Tensor:
        """``(layers, rows, width + slots, 2, heads, dim)``: the first ``width`` cached positions,
        then room for new ones.

        A view of the cache; or of some ``rows`` a copy.

        Raises:
            ValueError: the cache has no such room.
        """
        end = width + slots
        if end > self.capacity:
            raise ValueError(f"{end} positions in a cache of {self.capacity}")
        self._clear(end)
        if rows is None:
            return self.store[:, : self.rows, :end]
        return self.store[:, rows, :end]

    def write(
        self, reserved: Tensor, columns: Tensor, positions: Tensor, rows: Tensor | None = None
    ) -> None:
        """Keep ``columns`` ``(rows, n)`` of what :meth:`reserve` gave, at ``positions``.

        ``rows``: as given there.
        """
        store = self.store.flatten(1, 2)
        if rows is None:
            starts = row_starts(len(columns), self.capacity, columns.device)
            found = store.index_select(1, (starts + columns).flatten())
        else:
            starts = row_starts(len(rows), reserved.size(2), columns.device)
            found = reserved.flatten(1, 2).index_select(1, (starts + columns).flatten())
            starts = rows[:, None] * self.capacity
        store.index_copy_(1, (starts + positions).flatten(), found)

    def _clear(self, end: int) -> None:
        """Zero what is about to be read for the first time: a masked slot has weight 0, and 0 x NaN
        would be NaN. Not all of it at once: most rows end far below the capacity.
        """
        if end > self._zeroed:
            end = min(self.capacity, end + self.CHUNK)
            self.store[:, :, self._zeroed : end].zero_()
            self._zeroed = end

    def keep(self, rows: list[int], width: int) -> None:
        """Go on with ``rows`` only; only positions below ``width`` are moved."""
        keep_rows(self.store[:, :, :width], rows, 1)
        self.rows = len(rows)


def attention_mask(
    cached: list[int], on_device: Tensor, among: Tensor, dtype: torch.dtype
) -> Tensor | None:
    """What to add to the attention scores of new slots: over cached positions, then themselves.

    Args:
        cached: how many positions of each row hold something.
        on_device: ``(rows,)`` the same.
        among: ``(slots, slots)`` or ``(rows, 1, slots, slots)``: as to the new slots.

    Returns:
        of a shape that stands for ``(rows, heads, slots, positions + slots)``; None for nothing.
    """
    width, slots = max(cached), among.size(-1)
    if min(cached) == width:
        if slots == 1 and among.dim() == 2:
            return None
        return F.pad(among, (width, 0))
    seen = indices(width, on_device.device) < on_device[:, None, None, None]
    rows = len(cached)
    seen = additive(seen, dtype).expand(-1, -1, slots, -1)
    return torch.cat([seen, among.expand(rows, 1, slots, slots)], dim=-1)
