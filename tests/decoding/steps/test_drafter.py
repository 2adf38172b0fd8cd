"""A drafter's cached states are those of the training pass, however a prefix came to be cached."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from conftest import examples, make_batch, make_task, make_verifier
from helpers.decoding.whole_cache import WHOLE_CACHE
from helpers.models.drafters import CAUSAL, every_slots_logits, make_block, make_causal
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specdec_plugins.decoding.batch import Prefixes
from specdec_plugins.decoding.steps.drafter import CachedDrafter
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.engine import Engine
from specdec_plugins.host.fairseq_types import NetInput
from specdec_plugins.models.drafter import Drafter
from specdec_plugins.models.rows import unfinished

K, LENGTH = 4, 12

VARIANTS: dict[str, dict[str, Any]] = {
    **CAUSAL,
    "block": {"decoder_learned_pos": True},
    "block, no copy": {"src_embedding_copy": False},
}


pytestmark = pytest.mark.usefixtures("exact_softmax")


@cache
def make_drafter(name: str) -> Drafter:
    task = make_task(block_size=K)
    task.verifier = make_verifier().requires_grad_(False)
    make = make_block if name.startswith("block") else make_causal
    model = make(task, **VARIANTS[name])
    model.attach_verifier(task.verifier)
    return model


def expected_logits(
    model: Drafter, net_input: NetInput, tokens: Tensor, cut: Tensor, slots: int
) -> Tensor:
    """``(rows, slots, vocab)``, by the forward that training uses."""
    model.block_size = slots
    try:
        sources = net_input["src_tokens"], net_input["src_lengths"]
        return every_slots_logits(model, *sources, tokens, cut[:, None])[:, 0]
    finally:
        model.block_size = K


@torch.no_grad()
@examples(80)
@given(
    name=st.sampled_from(sorted(VARIANTS)),
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    steps=st.lists(st.tuples(st.integers(1, K), st.booleans()), min_size=1, max_size=5),
    alike=st.booleans(),
    some=st.booleans(),
    engine=st.sampled_from([EagerEngine("float64"), WHOLE_CACHE]),
    seed=st.integers(0, 999),
)
def test_cached_states_are_those_of_the_training_pass(
    name: str,
    lengths: list[int],
    steps: list[tuple[int, bool]],
    alike: bool,
    some: bool,
    engine: Engine,
    seed: int,
) -> None:
    """Rows go on at their own pace, or alike; some are drafted for, and some have more uncached
    than others; they may want fewer slots than others; and they drop out at random."""
    model = make_drafter(name)
    torch.manual_seed(seed)
    batch = make_batch(lengths, seed=seed)
    net_input = batch["net_input"]
    # Where rows differ in what is cached and in what is new, both may be longest at once.
    target = torch.randint(4, 24, (len(lengths), 2 * LENGTH + K))
    verifier_out = model.verifier.encoder(**net_input)
    features = None
    if model.uses_verifier_features:
        sources = net_input["src_tokens"], net_input["src_lengths"]
        _, features = model.verifier_states(*sources, target, model.encode(*sources))
    cached = CachedDrafter(model, engine)
    cached.start(net_input, verifier_out, LENGTH + K)
    rows = list(range(len(lengths)))
    done, seen = [0] * len(rows), [0] * len(rows)  # tokens that there are, and that are cached
    for slots, fewer in steps:
        going = [i for i in range(len(rows)) if not some or torch.rand(()) < 0.7]
        going = going or list(range(len(rows)))
        ours = [rows[i] for i in going]
        before = [seen[row] if cached.causal else 0 for row in ours]
        new = [done[row] - n for row, n in zip(ours, before)]
        held = torch.tensor(rows)  # the batch
        own = torch.randint(1, slots + 1, (len(ours),)).tolist() if fewer else None
        counts = [done[row] for row in ours]
        prefixes = Prefixes(
            target[held],
            new,
            counts,
            target[torch.tensor(ours), 0],
            None if features is None else features[held],
            own,
            going if len(going) < len(rows) else None,
        )
        states, _ = cached.draft(prefixes, slots)
        assert states.shape[:2] == (len(ours), slots)
        logits = model.decoder.output_layer(states)
        for count in set([slots] if own is None else own):
            those = [i for i in range(len(ours)) if own is None or own[i] == count]
            part = torch.tensor([ours[i] for i in those])
            inputs = {key: value[part] for key, value in net_input.items()}
            cuts = torch.tensor([counts[i] for i in those])
            expected = expected_logits(model, inputs, target[part], cuts, count)
            torch.testing.assert_close(logits[those, :count], expected, atol=1e-9, rtol=1e-8)
        for row in ours:
            seen[row] = done[row]
        pace = int(torch.randint(0, 4, ()))
        for row in rows:
            done[row] = min(LENGTH, done[row] + (pace if alike else int(torch.randint(0, 4, ()))))
        survivors = unfinished((torch.rand(len(rows)) < 0.2).tolist())
        if survivors and len(survivors) < len(rows):
            rows = [rows[i] for i in survivors]
            cached.select(survivors, max(seen[row] for row in rows))
