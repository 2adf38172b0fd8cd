"""Rows grow by what was accepted."""

from __future__ import annotations

from typing import Any

import torch
from conftest import examples, make_batch
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.decoding.acceptance import Accepted
from specdec_plugins.decoding.batch import Batch
from specdec_plugins.decoding.drafts import ChainDraft

EOS = 2


@examples(20)
@given(
    steps=st.lists(st.lists(st.integers(1, 4), min_size=3, max_size=3), min_size=1, max_size=2),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    seed=st.integers(0, 99),
)
def test_rows_grow(steps: list[list[int]], dtype: torch.dtype, seed: int) -> None:
    torch.manual_seed(seed)
    rows, slots = 3, 4
    net_input: Any = make_batch([3] * rows)["net_input"]
    batch = Batch(net_input, [9] * rows, 1, EOS, 4)
    assert batch.last == [EOS] * rows
    expected: list[list[tuple[int, float, list[float]]]] = [[] for _ in range(rows)]
    for counts in steps:
        tokens = torch.randint(4, 20, (rows, slots))
        scores = torch.randn(rows, slots, dtype=torch.float64)
        # Not contiguous: states of more tokens were read.
        states = torch.randn(rows, slots + 1, 3).to(dtype)[:, 1:]
        sources = torch.stack([torch.randperm(slots) for _ in range(rows)])
        accepted = Accepted(tokens, sources, counts, counts, counts)
        result = batch.commit(ChainDraft.of(tokens), accepted, scores, states)
        assert result.last == [row[count - 1] for row, count in zip(tokens.tolist(), counts)]
        for row, count in enumerate(counts):
            features = states[row, sources[row, :count]].tolist()
            added = zip(tokens[row, :count].tolist(), scores[row, :count].tolist(), features)
            expected[row] += added
    for row, triples in enumerate(expected):
        tokens_of, scores_of, features_of = map(list, zip(*triples))
        assert batch.tokens[row] == tokens_of
        assert batch.scores[row] == scores_of
        assert batch.features is not None
        assert batch.features[row, : batch.lengths[row]].tolist() == features_of
