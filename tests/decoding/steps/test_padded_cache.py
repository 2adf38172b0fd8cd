"""The cache of padded steps: rows at their own offsets, of which only what is kept stays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdec_plugins.decoding.steps.padded_cache import PaddedKVCache
from specdec_plugins.engines.sizes import PaddedSizes
from specdec_plugins.models.rows import unfinished

LAYERS, HEADS, DIM = 2, 2, 3


@settings(max_examples=40)
@given(
    rows=st.integers(1, 4),
    steps=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    some=st.booleans(),
    seed=st.integers(0, 999),
)
def test_steps_against_lists(rows: int, steps: list[int], some: bool, seed: int) -> None:
    """Every row keeps any of a step's tokens, some rows rest, and rows drop out at random; after
    one batch comes another."""
    torch.manual_seed(seed)
    layers: Any = [SimpleNamespace(heads=HEADS, head_dim=DIM)] * LAYERS
    sizes = PaddedSizes()
    cache = PaddedKVCache(layers, torch.float64, sizes)
    for _ in range(2):
        cache.begin(rows)
        # Per row ``(layers, 2, heads, dim)`` of each position.
        kept: list[list[Tensor]] = [[] for _ in range(rows)]
        for slots in steps:
            going = [row for row in range(len(kept)) if not some or torch.rand(()) < 0.7]
            if not going:
                continue
            chosen = torch.tensor(going) if len(going) < len(kept) else None
            new = torch.randn(LAYERS, len(going), slots, 2, HEADS, DIM, dtype=torch.float64)
            (past,) = cache.run(lambda past, new: (past.clone(), new), new, rows=chosen)
            assert past.size(4) == cache.width >= sizes.cached(max(map(len, kept)))
            for i, row in enumerate(going):
                for place, expected in enumerate(kept[row]):
                    assert torch.equal(past[:, :, i, :, place], expected)
            counts = torch.randint(0, slots + 1, (len(going),)).tolist()
            sources = torch.stack([torch.randperm(slots).sort().values for _ in going])
            begins = [len(kept[row]) for row in going]
            cache.write(sources.numpy(), begins, counts, None if chosen is None else going)
            for i, (row, count) in enumerate(zip(going, counts)):
                kept[row] += [new[:, i, int(slot)] for slot in sources[i, :count]]
            survivors = unfinished((torch.rand(len(kept)) < 0.2).tolist())
            if survivors:
                kept = [kept[row] for row in survivors]
                assert cache.keep(survivors) == len(kept)
            assert cache.rows == len(kept)


def test_one_row_has_the_same_memory_again() -> None:
    """Which an engine has been handed already."""
    layers: Any = [SimpleNamespace(heads=HEADS, head_dim=DIM)]
    cache = PaddedKVCache(layers, torch.float32, PaddedSizes())
    handed: list[Tensor] = []

    def step(past: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        handed.append(past)
        return mask, torch.zeros(1, 1, 20, 2, HEADS, DIM)

    for _ in range(2):
        cache.begin(1)
        for begin in (0, 20, 40):
            cache.run(step, torch.zeros(1))
            cache.write(torch.arange(20)[None].numpy(), [begin], [20])
    first, second = handed[:3], handed[3:]
    assert all(one is other for one, other in zip(first, second, strict=True))
    assert first[0] is first[1] is not first[2]


def test_rows_that_stay_are_not_moved() -> None:
    """What a step reads of fewer rows lies where it lay."""
    layers: Any = [SimpleNamespace(heads=HEADS, head_dim=DIM)]
    cache = PaddedKVCache(layers, torch.float32, PaddedSizes())
    cache.begin(4)
    (before,) = cache.run(lambda past, new: (past, new), torch.zeros(1, 4, 1, 2, HEADS, DIM))
    assert cache.keep([0, 3, 2]) == 3
    (after,) = cache.run(lambda past, new: (past, new), torch.zeros(1, 3, 1, 2, HEADS, DIM))
    assert after.size(2) == 3
    assert after.data_ptr() == before.data_ptr()
