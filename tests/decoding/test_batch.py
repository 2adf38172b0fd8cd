"""Rows grow by what was accepted, on the host and on a device."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from conftest import examples, make_batch
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.decoding import kernels
from specdec_plugins.decoding.acceptance import Accepted
from specdec_plugins.decoding.batch import Batch
from specdec_plugins.decoding.drafts import ChainDraft
from specdec_plugins.decoding.target_prefix import TargetPrefix

EOS = 2


def make(rows: int, precision: torch.dtype) -> Batch:
    net_input: Any = make_batch([3] * rows)["net_input"]
    prefix, limits = TargetPrefix.of(net_input, [9] * rows, 1, EOS)
    return Batch(net_input, None, prefix, limits, 4, precision)


def accepted(tokens: torch.Tensor, sources: torch.Tensor, counts: list[int]) -> Accepted:
    last = [row[count - 1] for row, count in zip(tokens.tolist(), counts)]
    return Accepted(tokens, sources, counts, counts, counts, last, [False] * len(counts))


@pytest.mark.parametrize("host", [True, False])
@examples(20)
@given(
    steps=st.lists(st.lists(st.integers(1, 4), min_size=3, max_size=3), min_size=1, max_size=2),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    seed=st.integers(0, 99),
)
def test_rows_grow(host: bool, steps: list[list[int]], dtype: torch.dtype, seed: int) -> None:
    torch.manual_seed(seed)
    rows, slots = 3, 4
    batch = make(rows, torch.promote_types(dtype, torch.float32))
    expected: list[list[tuple[int, float, list[float]]]] = [[] for _ in range(rows)]
    with patch.object(kernels, "is_host", lambda device: host):
        for counts in steps:
            tokens = torch.randint(4, 20, (rows, slots))
            scores = torch.randn(rows, slots, dtype=batch.scores.dtype)
            # Not contiguous: states of more tokens were read.
            states = torch.randn(rows, slots + 1, 3).to(dtype)[:, 1:]
            sources = torch.stack([torch.randperm(slots) for _ in range(rows)])
            draft = ChainDraft.of(tokens)
            result = batch.commit(draft, accepted(tokens, sources, counts), scores, states, True)
            assert result.last == batch.last.tolist()
            for row, count in enumerate(counts):
                features = states[row, sources[row, :count]].tolist()
                added = zip(tokens[row, :count].tolist(), scores[row, :count].tolist(), features)
                expected[row] += added
    for row, triples in enumerate(expected):
        tokens_of, scores_of, features_of = zip(*triples)
        end = batch.lengths[row]
        assert batch.tokens[row, : end + 1].tolist() == [EOS, *tokens_of]
        assert batch.scores[row, 1 : end + 1].tolist() == list(scores_of)
        assert batch.features is not None
        assert batch.features[row, :end].tolist() == list(features_of)
