"""The cache: rows at their own offsets, rolled back by being overwritten, compacted."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdec_plugins.decoding.kv_cache import KVCache

LAYERS, HEADS, DIM = 2, 2, 3


def make_cache(rows: int, capacity: int) -> KVCache:
    return KVCache(LAYERS, rows, capacity, HEADS, DIM, torch.float64, torch.device("cpu"))


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def naive(query: Tensor, keys_values: list[Tensor]) -> Tensor:
    """Attention of one query ``(heads, dim)`` to a list of ``(2, heads, dim)``."""
    keys, values = torch.stack(keys_values, dim=2)
    scores = (query[:, None] * keys).sum(-1) / math.sqrt(DIM)
    return (scores.softmax(-1)[..., None] * values).sum(1).flatten()


@settings(max_examples=40)
@given(
    rows=st.integers(1, 4),
    slots=st.integers(1, 3),
    steps=st.integers(1, 5),
    causal=st.booleans(),
    seed=st.integers(0, 999),
)
def test_ragged_steps_with_rollback_and_compaction(
    rows: int, slots: int, steps: int, causal: bool, seed: int
) -> None:
    """Against lists: every row keeps a random part of each step, and rows drop out at random."""
    torch.manual_seed(seed)
    cache = make_cache(rows, steps * slots)
    # Per row: what each layer has kept.
    kept: list[list[list[Tensor]]] = [[[] for _ in range(LAYERS)] for _ in range(rows)]
    for _ in range(steps):
        lengths = torch.tensor([len(row[0]) for row in kept])
        positions = lengths[:, None] + torch.arange(slots)
        limits = positions + 1 if causal else (lengths + slots)[:, None].expand(-1, slots)
        attends = cache.open(positions, limits, int(lengths.max()) + slots, masked=True)
        new = [draw(len(kept), slots, 2, HEADS, DIM) for _ in range(LAYERS)]
        for layer, attend in enumerate(attends):
            query = draw(len(kept), slots, HEADS, DIM)
            found = attend(query, new[layer])
            assert found.shape == (len(kept), slots, HEADS * DIM)
            for row, states in enumerate(kept):
                for slot in range(slots):
                    seen = slot + 1 if causal else slots
                    memory = states[layer] + list(new[layer][row, :seen])
                    torch.testing.assert_close(found[row, slot], naive(query[row, slot], memory))
        for row, states in enumerate(kept):
            accepted = int(torch.randint(1, slots + 1, ()))
            for layer in range(LAYERS):
                states[layer].extend(new[layer][row, :accepted])
        survivors = [row for row in range(len(kept)) if torch.rand(()) < 0.8]
        if survivors and len(survivors) < len(kept):
            kept = [kept[row] for row in survivors]
            cache.keep(torch.tensor(survivors), max(len(states[0]) for states in kept))
            assert cache.rows == len(kept)


def test_no_mask_where_all_is_seen() -> None:
    """Batch 1, one token: the mask is left out, and the result is the same."""
    masked, plain = make_cache(1, 4), make_cache(1, 4)
    for position in range(4):
        key_value, query = draw(1, 1, 2, HEADS, DIM), draw(1, 1, HEADS, DIM)
        index = torch.tensor([[position]])
        found = [
            cache.open(index, index + 1, position + 1, masked=flag)[0](query, key_value)
            for cache, flag in ((masked, True), (plain, False))
        ]
        torch.testing.assert_close(*found)


def test_rolling_back_is_overwriting() -> None:
    """Writing a rejected step any number of times leaves no trace."""
    rows, steps = torch.arange(2)[:, None], []
    for garbage in (0, 1, 3):
        torch.manual_seed(0)
        cache = make_cache(2, 6)
        start = draw(2, 2, 2, HEADS, DIM)
        cache.open(rows * 0 + torch.arange(2), rows * 0 + 1 + torch.arange(2), 2, True)[0](
            draw(2, 2, HEADS, DIM), start
        )
        positions = torch.tensor([[1, 2], [2, 3]])
        query, right = draw(2, 2, HEADS, DIM), draw(2, 2, 2, HEADS, DIM)
        for _ in range(garbage):
            attend = cache.open(positions, positions + 1, 4, True)[0]
            attend(draw(2, 2, HEADS, DIM), 1e6 * draw(2, 2, 2, HEADS, DIM))
        steps.append(cache.open(positions, positions + 1, 4, True)[0](query, right))
    assert torch.equal(steps[0], steps[1])
    assert torch.equal(steps[0], steps[2])


def test_layers_are_apart() -> None:
    cache = make_cache(1, 1)
    index = torch.zeros(1, 1, dtype=torch.long)
    states = [draw(1, 1, 2, HEADS, DIM) for _ in range(LAYERS)]
    for attend, key_value in zip(cache.open(index, index + 1, 1, True), states):
        # A single slot is all there is to see, so the result is its value.
        found = attend(draw(1, 1, HEADS, DIM), key_value)
        torch.testing.assert_close(found.view(HEADS, DIM), key_value[0, 0, 1])
    for layer, key_value in enumerate(states):
        assert torch.equal(cache.store[layer, 0, 0], key_value[0, 0])


def test_some_rows_go_on_while_the_others_stay() -> None:
    """As in caches of their own."""
    rows, lengths = torch.tensor([2, 0]), torch.tensor([1, 3])
    cache = make_cache(3, 4)
    cache.store.copy_(draw(*cache.store.shape))
    cache._zeroed = 4
    before, new, query = cache.store.clone(), draw(2, 1, 2, HEADS, DIM), draw(2, 1, HEADS, DIM)
    positions = lengths[:, None]
    attend, _ = cache.open(positions, positions + 1, 4, masked=True, rows=rows)
    found = attend(query, new)
    for place, (row, length) in enumerate(zip([2, 0], [1, 3])):
        memory = [*before[0, row, :length], new[place, 0]]
        torch.testing.assert_close(found[place, 0], naive(query[place, 0], memory))
        before[0, row, length] = new[place, 0]
    assert torch.equal(cache.store, before)


def test_compaction_moves_rows_whole() -> None:
    cache = make_cache(4, 5)
    cache.store.copy_(draw(*cache.store.shape))
    before = cache.store.clone()
    cache.keep(torch.tensor([1, 3]), 3)
    assert torch.equal(cache.store[:, :2, :3], before[:, [1, 3], :3])
    cache.keep(torch.tensor([1]), 3)
    assert torch.equal(cache.store[:, :1, :3], before[:, [3], :3])
    assert cache.rows == 1


def test_memory_never_written_is_never_read() -> None:
    """A masked slot has weight zero, but zero times NaN would be NaN."""
    cache = make_cache(2, 100)
    cache.store.fill_(math.nan)  # as fresh memory may be
    for first, second in ((0, 5), (1, 40), (2, 70)):
        positions = torch.tensor([[first], [second]])
        found = cache.open(positions, positions + 1, second + 1, True)[0](
            draw(2, 1, HEADS, DIM), draw(2, 1, 2, HEADS, DIM)
        )
        assert found.isfinite().all()


def test_a_full_cache_is_an_error() -> None:
    cache = make_cache(1, 4)
    positions = torch.tensor([[3, 4]])
    with pytest.raises(ValueError, match="5 positions in a cache of 4"):
        cache.open(positions, positions + 1, 5, masked=True)
