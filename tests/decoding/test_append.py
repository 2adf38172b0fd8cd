"""Rows grow by what they are given, on the host and elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_plugins.decoding.append import Column, _elsewhere, _on_host, append

WAYS = {"here": append, "on the host": _on_host, "elsewhere": _elsewhere}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@settings(max_examples=20)
@given(
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    before=st.integers(0, 2),
    dtype=st.sampled_from([torch.long, torch.float32, torch.float64, torch.bfloat16]),
    channels=st.sampled_from([(), (3,)]),
    chosen=st.booleans(),
    seed=st.integers(0, 99),
)
def test_rows_grow(
    way: Callable[[list[Column], list[int], list[int]], None],
    counts: list[int],
    before: int,
    dtype: torch.dtype,
    channels: tuple[int, ...],
    chosen: bool,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    rows, slots = len(counts), 5
    kept = torch.randint(9, (rows, 20, *channels)).to(dtype)
    new = torch.randint(9, (rows, slots, *channels)).to(dtype)
    lengths = torch.randint(0, 8, (rows,)).tolist()
    sources = torch.stack([torch.randperm(slots) for _ in counts])
    expected = kept.clone()
    way([Column(kept, new, before, sources if chosen else None)], lengths, counts)
    for row, (length, count) in enumerate(zip(lengths, counts)):
        begin, end = before + length, before + length + count
        taken = new[row, sources[row, :count]] if chosen else new[row, :count]
        assert kept[row, begin:end].equal(taken)
        assert kept[row, :begin].equal(expected[row, :begin])
