"""The cache: rows at their own offsets, of which only what is kept stays, compacted."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdec_plugins.decoding.steps.cache import KVCache, attention_mask
from specdec_plugins.models.layers import additive, attend_over
from specdec_plugins.models.rows import unfinished

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
    some=st.booleans(),
    tree=st.booleans(),
    seed=st.integers(0, 999),
)
def test_ragged_steps_against_lists(
    rows: int, slots: int, steps: int, some: bool, tree: bool, seed: int
) -> None:
    """Every row keeps any of a step's tokens, some rows rest, and rows drop out at random."""
    torch.manual_seed(seed)
    cache = make_cache(rows, 2 * steps * slots)
    # Per row: what each layer has kept.
    kept: list[list[list[Tensor]]] = [[[] for _ in range(LAYERS)] for _ in range(rows)]
    for _ in range(steps):
        going = [row for row in range(len(kept)) if torch.rand(()) < 0.7] if some else None
        index = torch.tensor(going) if going else None
        states = [kept[row] for row in going] if going else kept
        cached = [len(row[0]) for row in states]
        # Each slot sees itself, and others at random or those before it.
        seen = torch.ones(len(states), slots, slots, dtype=torch.bool).tril()
        if tree:
            seen = torch.rand(len(states), slots, slots) < 0.5
            seen |= torch.eye(slots, dtype=torch.bool)
        among = additive(seen if tree else seen[0], torch.float64)
        room = cache.reserve(max(cached), slots, index)
        mask = attention_mask(
            cached, torch.tensor(cached), among[:, None] if tree else among, torch.float64
        )
        new = [draw(len(states), slots, 2, HEADS, DIM) for _ in range(LAYERS)]
        for layer in range(LAYERS):
            query = draw(len(states), slots, HEADS, DIM)
            found = attend_over(room[layer], mask)(query, new[layer])
            for row, before in enumerate(states):
                for slot in range(slots):
                    memory = before[layer] + list(new[layer][row][seen[row, slot]])
                    torch.testing.assert_close(found[row, slot], naive(query[row, slot], memory))
        count = int(torch.randint(1, slots + 1, ()))
        chosen = torch.stack([torch.randperm(slots)[:count].sort().values for _ in states])
        positions = torch.tensor(cached)[:, None] + torch.arange(count)
        cache.write(room, chosen + max(cached), positions, index)
        for row, before in enumerate(states):
            # What else was in the room is whatever, as far as the row is concerned.
            for layer in range(LAYERS):
                before[layer].extend(new[layer][row, chosen[row]])
        survivors = unfinished((torch.rand(len(kept)) < 0.2).tolist())
        if survivors:
            kept = [kept[row] for row in survivors]
            cache.keep(survivors, max(len(states[0]) for states in kept))


def test_nothing_is_masked_where_all_is_seen() -> None:
    one = torch.zeros(1, 1, dtype=torch.float64)
    assert attention_mask([3, 3], torch.tensor([3, 3]), one, torch.float64) is None
    assert attention_mask([3, 2], torch.tensor([3, 2]), one, torch.float64) is not None


def test_memory_never_written_is_never_read() -> None:
    """A masked slot has weight zero, but zero times NaN would be NaN."""
    cache = make_cache(2, 100)
    cache.store.fill_(math.nan)  # as fresh memory may be
    among = torch.zeros(1, 1, dtype=torch.float64)
    for cached in ([0, 0], [0, 40], [1, 70]):
        mask = attention_mask(cached, torch.tensor(cached), among, torch.float64)
        room = cache.reserve(max(cached), 1)
        found = attend_over(room[0], mask)(draw(2, 1, HEADS, DIM), draw(2, 1, 2, HEADS, DIM))
        assert found.isfinite().all()


def test_a_full_cache_is_an_error() -> None:
    with pytest.raises(ValueError, match="5 positions in a cache of 4"):
        make_cache(1, 4).reserve(3, 2)
