"""Attention masks of new tokens. No fairseq in here."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_plugins.decoding.kernels import Bools, Floating, Ints, compiled, indices
from specdec_plugins.host.fairseq_types import EncoderOut
from specdec_plugins.models.layers import additive, lowest, source_mask


def needs_mask(cached: list[int], slots: int, width: int, exact: bool) -> bool:
    """Return whether a step needs a mask."""
    return not exact or slots > 1 or min(cached) < width


def fill_mask(mask: Tensor, cached: Ints, among: Bools) -> None:
    """Fill a mask on the host, to be added to attention scores.

    Args:
        mask: ``(rows, 1, slots, width + slots)``; padding sees all, and is seen by no other.
        cached: ``(rows,)`` positions that each row has cached.
        among: ``(rows, n, n)``, or ``(1, n, n)`` for all rows: the new tokens that each sees.
    """
    if mask.element_size() != 2:
        _fill(mask.numpy(), cached, among, lowest(mask.dtype))
        return
    # numpy knows no bfloat16, and few processors compute in float16.
    wide = torch.empty_like(mask, dtype=torch.float32)
    _fill(wide.numpy(), cached, among, lowest(mask.dtype))
    mask.copy_(wide)


@compiled
def _fill(mask: Floating, cached: Ints, among: Bools, unseen: float) -> None:
    count, slots = among.shape[1], mask.shape[2]
    width = mask.shape[3] - slots
    mask[:] = 0
    for row in range(len(cached)):
        seen = among[row if len(among) > 1 else 0]
        for slot in range(count):
            line = mask[row, 0, slot]
            line[cached[row] : width] = unseen
            line[width + count :] = unseen
            for other in range(count):
                if not seen[slot, other]:
                    line[width + other] = unseen


def mask_elsewhere(cached: Tensor, width: int, among: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the mask on a device, without padding; ``among`` may be ``(n, n)``."""
    rows, slots = len(cached), among.size(-1)
    seen = indices(width, cached.device) < cached[:, None, None]
    both = seen.expand(-1, slots, -1), among.expand(rows, slots, slots)
    return additive(torch.cat(both, dim=-1), dtype)[:, None]


def memory_mask(encoder_out: EncoderOut, states: Tensor, exact: bool) -> Tensor | None:
    """Return the mask of cross-attention to the encoder's ``states``; None if sizes are exact and
    nothing is hidden."""
    mask = source_mask(encoder_out, states.dtype)
    if mask is None and not exact:
        return states.new_zeros(states.size(1), 1, 1, len(states))
    return mask
