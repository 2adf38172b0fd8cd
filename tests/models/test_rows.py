"""Which rows go on, and how they are moved."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.models.rows import select_rows, unfinished


@given(st.lists(st.booleans(), max_size=12))
def test_few_rows_are_moved(finished: list[bool]) -> None:
    kept = unfinished(finished)
    assert sorted(kept) == [row for row, done in enumerate(finished) if not done]
    moved = [place for place, row in enumerate(kept) if place != row]
    assert moved == [place for place in range(len(kept)) if finished[place]]


@given(st.permutations(range(5)), st.integers(1, 5), st.integers(0, 2))
def test_rows_are_where_they_are_wanted(order: list[int], count: int, before: int) -> None:
    shape = [2] * before + [5, 3]
    x = torch.arange(3 * 5 * 2**before).view(shape)
    rows, whole = order[:count], x.clone()
    expected = whole.index_select(before, torch.tensor(rows))
    found = select_rows(x, rows, before)
    assert torch.equal(found, expected)
    assert found.data_ptr() == x.data_ptr()
