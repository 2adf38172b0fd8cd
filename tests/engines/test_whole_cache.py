"""Steps that are handed a whole cache, with masks that say what is in it, give what they give
without: tokens, and scores to 1e-9, of every controller, in batches and one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import examples, make_batch
from helpers.decoding.controlled import DRAFTERS, K, build, drafter, verifier
from helpers.decoding.scripted import DICTIONARY
from helpers.decoding.whole_cache import WHOLE_CACHE
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.decoding.acceptance import RelaxedRule, StrictRule
from specdec_plugins.decoding.controllers.base import CONTROLLERS
from specdec_plugins.decoding.drafter_alone import DrafterAlone
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.step_result import Hypothesis
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.engine import Engines

EXACT = EagerEngine("float64")


LIMITS: dict[str, dict[str, Any]] = {
    "none": {},
    "a minimum": {"min_len": 6},
    "unknown words": {"unkpen": 1.5},
    "warmer": {"temperature": 1.7},
    "repetition": {"repetition_penalty": 1.4},
}


def assert_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    for (one,), (other,) in zip(found, expected, strict=True):
        assert one["tokens"].tolist() == other["tokens"].tolist()
        assert one["accepted"] == other["accepted"]
        scores = one["positional_scores"], other["positional_scores"]
        torch.testing.assert_close(*scores, atol=1e-9, rtol=1e-9)


@examples(30)
@given(
    name=st.sampled_from(sorted(DRAFTERS)),
    # auto drafts for fewer rows where steps get whole caches.
    controller=st.sampled_from(sorted(set(CONTROLLERS) - {"auto"})),
    relaxed=st.booleans(),
    limited=st.sampled_from(sorted(LIMITS)),
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=11),
    seed=st.integers(0, 99),
)
def test_decoding(
    name: str, controller: str, relaxed: bool, limited: str, lengths: list[int], seed: int
) -> None:
    rule, batch = RelaxedRule(3, 2.0) if relaxed else StrictRule(), make_batch(lengths, seed=seed)
    found, expected = (
        build(engine, name, CONTROLLERS[controller](), rule, max_len_b=20, **LIMITS[limited])
        for engine in (WHOLE_CACHE, EXACT)
    )
    assert_same(found.generate([], batch), expected.generate([], batch))


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_drafter_alone(name: str) -> None:
    batch = make_batch([5, 9, 3, 17, 8])
    found = []
    for engine in (WHOLE_CACHE, EXACT):
        limits = GenerationLimits(max_len_b=20)
        alone = DrafterAlone(drafter(name), verifier(), DICTIONARY, K, limits, Engines.both(engine))
        found.append(alone.generate([], batch))
    assert_same(*found)
