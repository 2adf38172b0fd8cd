"""A trace tells what was committed, and recording it changes nothing."""

from __future__ import annotations

import time
from typing import Any

import torch
from conftest import make_batch, make_dictionary, make_verifier
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import ScriptedDrafter, corrupted, scripted_generator

from specdec_plugins.decoding.acceptance import choose_rule
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.trace import StepTrace, TraceRecorder

DICTIONARY = make_dictionary()
VERIFIER = make_verifier()
EOS = "</s>"


def make_generator(script: Any, k: int, traced: bool = True, beta: int = 1) -> SpeculativeGenerator:
    """``script``: tokens, or a drafter that knows them; without a drafter if ``k`` is 0."""
    given: Any = {
        "rule": choose_rule({"beta": beta, "tau": 2.0}),
        "limits": GenerationLimits(max_len_b=12),
        "recorder": TraceRecorder(DICTIONARY) if traced else None,
    }
    if not k:
        return SpeculativeGenerator(VERIFIER, None, DICTIONARY, **given)
    return scripted_generator(VERIFIER, script, k, **given)


def make_script(batch: Any, corruption: float, seed: int) -> torch.Tensor:
    """The verifier's greedy output, with some tokens replaced."""
    greedy = make_generator(None, 0, traced=False).generate([], batch)
    return corrupted([h for (h,) in greedy], 13, corruption, len(DICTIONARY), seed)


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    seed=st.integers(0, 9),
    k=st.integers(0, 5),
    corruption=st.sampled_from([0.0, 0.3, 1.0]),
    beta=st.sampled_from([1, 3]),
)
def test_a_trace_tells_what_was_committed(
    lengths: list[int], seed: int, k: int, corruption: float, beta: int
) -> None:
    batch = make_batch(lengths, seed=seed)
    script = make_script(batch, corruption, seed)
    plain = make_generator(script, k, traced=False, beta=beta).generate([], batch)
    generator = make_generator(script, k, beta=beta)
    hypotheses = generator.generate([], batch)
    for row, ((hypothesis,), (untraced,)) in enumerate(zip(hypotheses, plain)):
        assert "trace" not in untraced
        assert hypothesis["tokens"].tolist() == untraced["tokens"].tolist()
        assert hypothesis["accepted"] == untraced["accepted"]
        steps: list[StepTrace] = hypothesis["trace"]
        assert [step.accepted for step in steps] == hypothesis["accepted"]
        told: list[str] = []
        for step in steps:
            assert step.verify_length == len(step.drafted) == k
            places = range(len(told), len(told) + k)
            expected = [DICTIONARY[script[row, min(place, 12)]] for place in places]
            assert step.drafted == expected
            own = [] if step.bonus is None else [step.bonus]
            assert step.committed == step.accepted + len(own)
            told += step.drafted[: step.accepted] + own
        assert told == [DICTIONARY[token] for token in hypothesis["tokens"]]
        assert all(step.bonus is not None for step in steps[:-1])
        assert told.count(EOS) == 1
    statistics = generator.statistics
    steps = [step for (hypothesis,) in hypotheses for step in hypothesis["trace"]]
    assert len(steps) == statistics.steps
    assert sum(step.bonus is not None for step in steps) == statistics.bonus_tokens


def test_milliseconds_are_those_of_the_batch() -> None:
    batch = make_batch([7, 3, 5])
    generator = make_generator(None, 0)
    generator.limits = GenerationLimits(max_len_a=1.0, max_len_b=1)
    generator.generate([], batch)
    start = time.perf_counter()
    hypotheses = generator.generate([], batch)
    elapsed = 1000 * (time.perf_counter() - start)
    rows = [[step.milliseconds for step in h["trace"]] for (h,) in hypotheses]
    longest = max(rows, key=len)
    assert len({len(row) for row in rows}) > 1
    assert all(row == longest[: len(row)] for row in rows)
    assert min(longest) > 0
    assert sum(longest) < elapsed


def test_slow_steps_are_seen_in_their_own_time() -> None:
    class SlowDrafter(ScriptedDrafter):
        def draft(self, *args: Any) -> Any:
            time.sleep(0.02)
            return super().draft(*args)

    batch = make_batch([4])
    script = make_script(batch, 0.0, 0)
    ((hypothesis,),) = make_generator(SlowDrafter(script), 2).generate([], batch)
    assert all(step.milliseconds >= 20 for step in hypothesis["trace"])
