"""Rows that are joined and padded again."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.models.ragged import RaggedRows


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=6), more=st.integers(0, 2))
def test_what_is_joined_is_the_tokens_row_by_row(lengths: list[int], more: int) -> None:
    slots = max(lengths) + more
    x = torch.arange(len(lengths) * slots * 3).view(len(lengths), slots, 3)
    ragged = RaggedRows.of(torch.tensor(lengths), slots)
    joined = ragged.join(x)
    expected = [token for row, n in zip(x, lengths) for token in row[:n]]
    assert joined.tolist() == torch.stack(expected)[:, None].tolist()
    padded = ragged.pad(joined)
    assert padded.shape == x.shape
    for found, row, n in zip(padded, x, lengths):
        assert torch.equal(found[:n], row[:n])
        assert torch.equal(found[n:], row[n - 1].expand(slots - n, -1))
