"""What new tokens see: on the host and off it, with padding and without."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.decoding.steps.mask import fill_mask, mask_elsewhere, needs_mask
from specdec_plugins.models.layers import lowest


@given(
    cached=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    new=st.integers(1, 6),
    beyond=st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 4)),
    alike=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    seed=st.integers(0, 99),
)
def test_a_mask_slot_by_slot(
    cached: list[int],
    new: int,
    beyond: tuple[int, int, int],
    alike: bool,
    dtype: torch.dtype,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    rows, slots, width = len(cached) + beyond[0], new + beyond[1], max(cached) + beyond[2]
    among = torch.rand(1 if alike else len(cached), new, new) < 0.5
    mask = torch.full((rows, 1, slots, width + slots), torch.nan, dtype=dtype)
    fill_mask(mask, np.array(cached), among.numpy())
    assert set(mask.unique().tolist()) <= {0.0, lowest(dtype)}
    for row in range(rows):
        for slot in range(slots):
            seen = (mask[row, 0, slot] == 0).tolist()
            if row >= len(cached) or slot >= new:
                assert all(seen)
                continue
            expected = [place < cached[row] for place in range(width)]
            expected += [*among[0 if alike else row, slot].tolist(), *[False] * (slots - new)]
            assert seen == expected
    if (rows, slots) == (len(cached), new):
        other = mask_elsewhere(torch.tensor(cached), width, among[0] if alike else among, dtype)
        assert torch.equal(other, mask)


@pytest.mark.parametrize(
    ("cached", "slots", "width", "exact", "needed"),
    [
        ([3, 3], 1, 3, True, False),
        ([3, 2], 1, 3, True, True),
        ([3, 3], 2, 3, True, True),
        ([3, 3], 1, 32, False, True),
        ([32, 32], 1, 32, False, True),
    ],
)
def test_nothing_is_masked_where_all_is_seen(
    cached: list[int], slots: int, width: int, exact: bool, needed: bool
) -> None:
    """But where sizes are padded, an engine is always handed a mask."""
    assert needs_mask(cached, slots, width, exact) is needed
