"""Rows grow by what they are given, on the host and elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.decoding.append import Column, _elsewhere, _on_host, append

WAYS = {"here": append, "on the host": _on_host, "elsewhere": _elsewhere}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@examples(20)
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
    new = torch.randint(9, (rows, slots + 1, *channels)).to(dtype)[:, 1:]
    also = torch.zeros(rows, 20)
    lengths = torch.randint(0, 8, (rows,)).tolist()
    sources = torch.stack([torch.randperm(slots) for _ in counts])
    expected = kept.clone()
    ones = Column(also, torch.ones(rows, slots))
    way([Column(kept, new, before, sources if chosen else None), ones], lengths, counts)
    for row, (length, count) in enumerate(zip(lengths, counts)):
        begin, end = before + length, before + length + count
        taken = new[row, sources[row, :count]] if chosen else new[row, :count]
        assert kept[row, begin:end].equal(taken)
        assert kept[row, :begin].equal(expected[row, :begin])
        assert kept[row, before + length + max(counts) :].equal(
            expected[row, before + length + max(counts) :]
        )
        assert also[row, : length + count].tolist() == [0.0] * length + [1.0] * count


def test_a_row_without_room_is_an_error() -> None:
    """Compiled code does not look where it writes."""
    with pytest.raises(ValueError, match="5 tokens in a row of 4"):
        append([Column(torch.zeros(1, 4), torch.zeros(1, 2), 1)], [2], [2])
