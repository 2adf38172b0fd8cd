"""Steps that join cached and new tokens give what steps that write into the cache give."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import examples, make_batch
from controlled import DRAFTERS, drafter, verifier
from hypothesis import given
from hypothesis import strategies as st
from joining import JOINING

from specdec_plugins.decoding.batch import Prefixes
from specdec_plugins.decoding.steps.drafter import CachedDrafter
from specdec_plugins.decoding.steps.verifier import CachedVerifier
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.models.rows import unfinished

PAD, CAPACITY = 1, 60
ENGINES: tuple[EagerEngine, EagerEngine] = (EagerEngine("float64"), JOINING)

pytestmark = pytest.mark.usefixtures("exact_softmax")


def pair(make: Any) -> list[Any]:
    """Of the reference, and what is compared with it."""
    return [make(engine) for engine in ENGINES]


def draft(rows: int, nodes: int, alike: bool) -> Any:
    """Any tokens, of which each sees itself and others at random."""
    shape = (nodes + 1,) if alike else (rows, nodes + 1)
    seen = torch.rand(*shape, nodes + 1) < 0.5
    seen |= torch.eye(nodes + 1, dtype=torch.bool)

    return SimpleNamespace(
        tokens=torch.randint(4, 24, (rows, nodes)),
        links=SimpleNamespace(depths=torch.randint(0, 3, shape), ancestors=seen),
    )


@torch.no_grad()
@examples(60)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=5),
    steps=st.lists(st.tuples(st.integers(0, 11), st.booleans()), min_size=1, max_size=4),
    seed=st.integers(0, 999),
)
def test_a_verifier(lengths: list[int], steps: list[tuple[int, bool]], seed: int) -> None:
    torch.manual_seed(seed)
    batch, rows = make_batch(lengths, seed=seed)["net_input"], len(lengths)
    both = pair(lambda engine: CachedVerifier(verifier(), PAD, engine))
    for one in both:
        one.begin(one.encode(batch["src_tokens"], batch["src_lengths"]), CAPACITY)
    counts = [0] * rows
    for nodes, alike in steps:
        drafted, last = draft(rows, nodes, alike), torch.randint(4, 24, (rows,))
        expected, found = ([x.clone() for x in one.score(last, drafted, counts)] for one in both)
        for ours, own in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, own, atol=1e-9, rtol=1e-9)
        new = torch.randint(1, nodes + 2, (rows,)).tolist()
        sources = torch.stack([torch.randperm(nodes + 1).sort().values for _ in range(rows)])
        for one in both:
            one.cache.write(sources, counts, new)
        counts = [count + more for count, more in zip(counts, new)]
        survivors = unfinished((torch.rand(rows) < 0.2).tolist())
        if survivors and len(survivors) < rows:
            rows, counts = len(survivors), [counts[i] for i in survivors]
            for one in both:
                one.keep(survivors, max(counts))


@torch.no_grad()
@examples(60)
@given(
    name=st.sampled_from(sorted(DRAFTERS)),
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=5),
    steps=st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=4),
    some=st.booleans(),
    seed=st.integers(0, 999),
)
def test_a_drafter(
    name: str,
    lengths: list[int],
    steps: list[tuple[int, bool]],
    some: bool,
    seed: int,
) -> None:
    """Rows go on at their own pace; some are drafted for, of which some want fewer slots."""
    torch.manual_seed(seed)
    model, batch, rows = drafter(name), make_batch(lengths, seed=seed)["net_input"], len(lengths)
    both = pair(lambda engine: CachedDrafter(model, engine))
    for one, engine in zip(both, ENGINES):
        shared = CachedVerifier(verifier(), PAD, engine)
        out = shared.encode(batch["src_tokens"], batch["src_lengths"])
        one.start(batch, out, CAPACITY)
    # Where rows differ in what is cached and in what is new, both may be longest at once.
    target = torch.randint(4, 24, (rows, 2 * CAPACITY))
    channels = both[0].step.channels if both[0].reads_features else 0
    features = torch.randn(rows, 2 * CAPACITY, channels, dtype=torch.float64)
    done, seen = [0] * rows, [0] * rows  # tokens that there are, and that are cached
    for slots, fewer in steps:
        going = [i for i in range(rows) if not some or torch.rand(()) < 0.7] or list(range(rows))
        counts = [done[row] for row in going]
        new = [done[row] - (seen[row] if both[0].causal else 0) for row in going]
        prefixes = Prefixes(
            target,
            new,
            counts,
            torch.randint(4, 24, (len(going),)),
            features if both[0].reads_features else None,
            torch.randint(1, slots + 1, (len(going),)).tolist() if fewer else None,
            going if len(going) < rows else None,
        )
        (expected, scores), (found, ours) = (one.draft(prefixes, slots) for one in both)
        for i in range(len(going)):
            own = prefixes.slots[i] if prefixes.slots else slots
            torch.testing.assert_close(found[i, :own], expected[i, :own], atol=1e-9, rtol=1e-9)
            chosen = ours.choose()[i, :own], scores.choose()[i, :own]
            assert chosen[0].tolist() == chosen[1].tolist()
        for row in going:
            seen[row] = done[row]
        done = [min(CAPACITY - 8, count + int(torch.randint(0, 12, ()))) for count in done]
        survivors = unfinished((torch.rand(rows) < 0.2).tolist())
        if survivors and len(survivors) < rows:
            rows, index = len(survivors), torch.tensor(survivors)
            done, seen = [done[i] for i in survivors], [seen[i] for i in survivors]
            target, features = target[index], features[index]
            for one in both:
                one.keep(survivors, max(seen))
