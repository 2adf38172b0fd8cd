"""The cache: rows at their own offsets, of which only what is kept stays, compacted."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specdec_plugins.decoding.steps.cache import KVCache, fill_mask, mask_by_tensors
from specdec_plugins.models.layers import lowest
from specdec_plugins.models.rows import unfinished

LAYERS, HEADS, DIM = 2, 2, 3


def make_cache(whole: bool) -> KVCache:
    layers: Any = [SimpleNamespace(heads=HEADS, head_dim=DIM)] * LAYERS
    return KVCache(layers, whole)


def states(rows: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Those of an encoder."""
    return torch.zeros(1, rows, 1, dtype=dtype)


def step_of(new: Tensor) -> Callable[..., tuple[Tensor, ...]]:
    """A step that writes such new keys and values, and returns what it was handed before."""

    def step(past: Tensor, indices: Tensor | None, mask: None, tokens: Tensor) -> tuple[Tensor]:
        before = past.clone()
        if indices is None:
            past[..., -tokens.size(1) :, :] = new
        else:
            rows, heads, positions = indices.unbind(-1)
            past[:, :, rows, heads, positions] = new.permute(0, 1, 2, 4, 3, 5)
        return (before,)

    return step


@examples(60)
@given(
    whole=st.booleans(),
    rows=st.integers(1, 4),
    steps=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    some=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    seed=st.integers(0, 999),
)
def test_steps_against_lists(
    whole: bool, rows: int, steps: list[int], some: bool, dtype: torch.dtype, seed: int
) -> None:
    """Every row keeps any of a step's tokens, some rows rest, and rows drop out at random; after
    one batch comes another."""
    torch.manual_seed(seed)
    cache = make_cache(whole)
    for _ in range(2):
        cache.begin(states(rows, dtype))
        # Per row ``(layers, 2, heads, dim)`` of each position.
        kept: list[list[Tensor]] = [[] for _ in range(rows)]
        for slots in steps:
            going = [row for row in range(len(kept)) if not some or torch.rand(()) < 0.7]
            if not going:
                continue
            chosen = torch.tensor(going) if len(going) < len(kept) else None
            new = torch.randn(LAYERS, 2, len(going), HEADS, slots, DIM).to(dtype)
            longest, tokens = max(len(kept[row]) for row in going), torch.zeros(len(going), slots)
            width = cache.reserve(longest, slots)
            (past,) = cache.run(step_of(new), longest, (None, tokens), chosen)
            assert past.size(4) == width >= longest + slots
            assert past.isfinite().all()
            for i, row in enumerate(going):
                for place, expected in enumerate(kept[row]):
                    assert torch.equal(past[:, :, i, :, place], expected)
            counts = torch.randint(0, slots + 1, (len(going),)).tolist()
            begins = [len(kept[row]) for row in going]
            # Of each row any, in their order.
            sources = torch.zeros(len(going), slots, dtype=torch.long)
            for i, count in enumerate(counts):
                sources[i, :count] = torch.randperm(slots)[:count].sort().values
            cache.write(sources, begins, counts, None if chosen is None else going)
            for i, (row, count) in enumerate(zip(going, counts)):
                kept[row] += [new[:, :, i, :, int(slot)] for slot in sources[i, :count]]
            survivors = unfinished((torch.rand(len(kept)) < 0.2).tolist())
            if survivors:
                kept = [kept[row] for row in survivors]
                cache.select(survivors, max(map(len, kept)))
            assert cache.rows == len(kept)


@given(
    cached=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    new=st.integers(1, 6),
    beyond=st.integers(0, 4),
    alike=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    seed=st.integers(0, 99),
)
def test_a_mask_slot_by_slot(
    cached: list[int],
    new: int,
    beyond: int,
    alike: bool,
    dtype: torch.dtype,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    rows, width, first = len(cached), max(cached) + new + beyond, max(cached)
    among = torch.rand(1 if alike else len(cached), new, new) < 0.5
    mask = torch.full((rows, 1, new, width), torch.nan, dtype=dtype)
    fill_mask(mask, np.array(cached), among.numpy(), first)
    assert set(mask.unique().tolist()) <= {0.0, lowest(dtype)}
    for row in range(rows):
        for slot in range(new):
            seen = (mask[row, 0, slot] == 0).tolist()
            expected = [place < cached[row] for place in range(first)]
            expected += among[0 if alike else row, slot].tolist()
            assert seen == expected + [False] * beyond
    other = mask_by_tensors(torch.tensor(cached), first, among[0] if alike else among, dtype)
    assert torch.equal(other, mask[..., : first + new])
