"""Recorded steps put out what the ordinary loop does, and count what it counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from conftest import examples, make_batch
from helpers.decoding.controlled import DRAFTERS, K, build
from helpers.decoding.recorded import by_call, by_graph, recorded
from helpers.decoding.scripted import DICTIONARY, traced
from helpers.decoding.strict import check_beam1
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specdec_plugins.decoding.acceptance import (
    AcceptanceRule,
    RelaxedRule,
    SamplingRule,
    StrictRule,
)
from specdec_plugins.decoding.controllers.simple import Confidence, Constant, NoDrafts, Tree
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import MAX_LENGTHS
from specdec_plugins.decoding.resident.loop import ResidentBatch
from specdec_plugins.decoding.step_result import CommitObserver, StepResult
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.engine import Buckets, Engine, Replay
from specdec_plugins.host.fairseq_types import Sample

CAUSAL = [name for name in sorted(DRAFTERS) if name != "block"]
CONTROLLERS = {
    "none": NoDrafts(),
    "confidence": Confidence(),
    "constant": Constant(),
    "short": Constant(),
    # Without drafts that are used again, which recorded steps have not.
    "tree": Tree(redraft_below=math.inf),
    "small tree": Tree(tree_nodes=3, redraft_below=math.inf),
    "short tree": Tree(redraft_below=math.inf),
    "tree of few rows": Tree(max_rows=2, redraft_below=math.inf),
}
RULES: dict[str, AcceptanceRule] = {
    "strict": StrictRule(),
    "relaxed": RelaxedRule(3, 2.0),
    "widest": RelaxedRule(len(DICTIONARY), math.inf),
}
EAGER = EagerEngine("float64")


def make(
    engine: Engine, name: str, controller: str, rule: AcceptanceRule, **limits: Any
) -> SpeculativeGenerator:
    k = 1 if controller.startswith("short") else K
    return build(engine, name, CONTROLLERS[controller], rule, k, **limits)


def followed(generator: SpeculativeGenerator, ends: Sequence[int | None]) -> list[list[int]]:
    """Return the tokens of each row of the next batch, which steps are to add.

    ``ends``: how many tokens of each row are enough, if not all.
    """
    rows: list[list[int]] = [[] for _ in ends]

    def add(index: int, before: int, tokens: list[int], accepted: int) -> bool:
        row = rows[index]
        assert before == len(row)
        assert len(tokens) - accepted in (0, 1)
        row += tokens
        enough = ends[index]
        return enough is None or len(row) < enough

    observer = CommitObserver()
    observer.follow([partial(add, index) for index in range(len(rows))])
    generator.observers[:] = [observer]
    return rows


def assert_same(found: SpeculativeGenerator, expected: SpeculativeGenerator, batch: Sample) -> None:
    """The same output, scores and counts."""
    pairs = list(zip(found.generate([], batch), expected.generate([], batch), strict=True))
    for (one,), (other,) in pairs:
        assert one["tokens"].tolist() == other["tokens"].tolist()
        assert one["accepted"] == other["accepted"]
        assert [part["tokens"].tolist() for part in one["history"]] == [
            part["tokens"].tolist() for part in other["history"]
        ]
        for key in ("positional_scores", "score"):
            torch.testing.assert_close(one[key], other[key], atol=1e-9, rtol=1e-9)
    reports = [one.statistics.report() for one in (found, expected)]
    for report in reports:
        for timed in ("seconds", "tokens_per_second", "latency_ms"):
            del report[timed]
    assert reports[0] == reports[1]
    assert found.engines.name == "cuda-graphs"


CASES = st.fixed_dictionaries(
    {
        "name": st.sampled_from(CAUSAL),
        "controller": st.sampled_from(sorted(CONTROLLERS.keys() - {"confidence"})),
        "rule": st.sampled_from(sorted(RULES)),
        "lengths": st.lists(st.integers(1, 20), min_size=1, max_size=7),
        "rows": st.sampled_from([None, 1, 2, 3]),
        "seed": st.integers(0, 99),
        "max_len_b": st.integers(2, 40),
    },
    optional={
        "min_len": st.integers(0, 2),
        "unkpen": st.sampled_from([-2.0, 1.5]),
        "temperature": st.just(1.7),
        "repetition_penalty": st.just(1.4),
    },
)
"""Pairs, rules, limits and batches, whose rows end one by one, make room for others, and grow out
of their buffers."""


def assert_both_loops_put_out_the_same(
    record: Callable[[Replay], Replay], case: dict[str, Any]
) -> None:
    """Two batches, one after the other: the second finds what the first has recorded."""
    limits = dict(case)
    name, controller, rule, lengths, rows, seed = map(
        limits.pop, ("name", "controller", "rule", "lengths", "rows", "seed")
    )
    models: Any = name, controller, RULES[rule]
    made, plain = make(recorded(record), *models, **limits), make(EAGER, *models, **limits)
    # A tree of few rows is of so many at once.
    made.rows = None if controller == "tree of few rows" else rows
    for number, batch in enumerate((lengths, lengths[::-1])):
        assert_same(made, plain, make_batch(batch, seed=seed + number))


@examples(30)
@given(
    longest=st.lists(st.integers(1, 20), min_size=1, max_size=7),
    controller=st.sampled_from(["none", "constant", "tree"]),
    rows=st.sampled_from([None, 2]),
    seed=st.integers(0, 99),
)
def test_each_row_has_its_own_maximum_length(
    longest: list[int], controller: str, rows: int | None, seed: int
) -> None:
    """In place of that of all rows, which may be smaller."""
    models = "causal", controller, StrictRule()
    made, plain = make(recorded(), *models, max_len_b=6), make(EAGER, *models, max_len_b=6)
    made.rows = rows
    batch = make_batch([1 + length % 7 for length in longest], seed=seed)
    batch["net_input"][MAX_LENGTHS] = torch.tensor(longest)
    assert_same(made, plain, batch)
    for (found,), limit in zip(made.generate([], batch), longest):
        assert len(found["tokens"]) <= limit + 1


@examples(40)
@given(
    ends=st.lists(st.sampled_from([None, 1, 3, 8]), min_size=1, max_size=7),
    name=st.sampled_from(["causal", "block"]),
    controller=st.sampled_from(["none", "confidence", "constant", "tree of few rows"]),
    rows=st.sampled_from([None, 1, 2]),
    seed=st.integers(0, 99),
)
def test_an_observer_ends_rows(
    ends: list[int | None], name: str, controller: str, rows: int | None, seed: int
) -> None:
    """By either loop: the others go on as if nothing were."""
    batch = make_batch([1 + (seed + n) % 9 for n in range(len(ends))], seed=seed)
    for engine in (recorded(), EAGER):
        generator = make(engine, name, controller, StrictRule(), max_len_b=20)
        generator.rows = rows
        whole = generator.generate([], batch)
        followed(generator, ends)
        found = generator.generate([], batch)
        for (one,), (other,), end in zip(found, whole, ends, strict=True):
            tokens = one["tokens"].tolist()
            expected = other["tokens"].tolist()
            if end is None or end > len(expected):
                assert tokens == expected
            else:
                assert end <= len(tokens) <= end + K
                assert tokens == expected[: len(tokens)]


OUTGROWN = {"name": "causal", "controller": "constant", "rule": "relaxed", "rows": None, "seed": 0}
"""With these sources a row outgrows a step that is used again, by others, later."""


@examples(50)
@example({**OUTGROWN, "lengths": [1, 1, 1, 2], "max_len_b": 28})
@given(CASES)
def test_the_ordinary_loop_puts_out_the_same(case: dict[str, Any]) -> None:
    assert_both_loops_put_out_the_same(by_call, case)


@settings(max_examples=2)
@given(CASES)
def test_so_does_what_runs_no_python(case: dict[str, object]) -> None:
    """It takes two seconds to record: few here, many in the next one."""
    assert_both_loops_put_out_the_same(by_graph, case)


@pytest.mark.usefixtures("exact_softmax")
@examples(40)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=3, max_size=9),
    seed=st.integers(0, 99),
    rows=st.sampled_from([2, 8]),
    controller=st.sampled_from(["none", "constant", "tree"]),
)
def test_sentences_that_begin_where_others_end_come_out_as_alone(
    lengths: list[int], seed: int, rows: int, controller: str
) -> None:
    """As one by one, as by stock greedy search; no row waits while a sentence does."""
    made = make(recorded(), "causal, all shared", controller, StrictRule(), max_len_b=20)
    made.rows, batch, resident = rows, make_batch(lengths, seed=seed), made._resident
    found = check_beam1(made, batch)
    assert made.refills
    assert resident is not None
    idle = resident.row_steps - made.statistics.steps
    assert idle <= rows * max(hypothesis["steps"] for hypothesis in found)
    for row, hypothesis in enumerate(found):
        alone = {k: x[row : row + 1] for k, x in batch["net_input"].items()}
        ((expected,),) = made.generate([], {"net_input": alone})
        assert hypothesis["tokens"].tolist() == expected["tokens"].tolist()
        assert hypothesis["accepted"] == expected["accepted"]


@pytest.mark.parametrize("record", [recorded(), recorded(by_graph)], ids=["called", "replayed"])
@pytest.mark.parametrize("controller", ["none", "constant", "tree"])
def test_sampling_draws_the_same_numbers(controller: str, record: Engine) -> None:
    """One row at a time, of which both loops draw in the same order."""
    given: Any = "causal, all shared", controller, SamplingRule(8, 0.9)
    pair = [make(engine, *given, max_len_b=8) for engine in (record, EAGER)]
    pair[0].generate([], make_batch([4]))  # To record draws, too.
    outputs = []
    for generator in pair:
        torch.manual_seed(3)
        outputs.append(
            [
                generator.generate([], make_batch([4], seed=seed))[0][0]["tokens"].tolist()
                for seed in range(8)
            ]
        )
    assert outputs[0] == outputs[1]
    assert len({len(tokens) for tokens in outputs[0]}) > 1


@pytest.mark.parametrize("controller", ["none", "constant", "tree"])
def test_a_device_has_its_next_step_before_the_host_deals_with_the_last_one(
    controller: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for steps in which a sentence ends; none is made in vain."""
    launch, append, events = ResidentBatch._launch, ResidentBatch.append, list[str]()

    def appended(*arguments: Any) -> StepResult:
        result = append(*arguments)
        events.append("ended" if any(result.finished) else "dealt with")
        return result

    noted = {"append": appended, "_launch": lambda batch: events.append("step") or launch(batch)}
    for name, function in noted.items():
        monkeypatch.setattr(ResidentBatch, name, function)
    engine = recorded(buckets=Buckets())
    made = make(engine, "causal, all shared", controller, StrictRule(), min_len=12, max_len_b=20)
    made.generate([], make_batch([4, 5]))
    assert "step, step, dealt with" in ", ".join(events)
    for end in (i for i, event in enumerate(events, 1) if event == "ended"):
        assert events[:end].count("step") == end / 2


@pytest.mark.parametrize("why", ["reads whole prefixes", "decides anew", "--trace"])
def test_what_cannot_be_recorded_goes_by_the_ordinary_loop(
    why: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = "block" if why == "reads whole prefixes" else "causal"
    controller = "confidence" if why == "decides anew" else "constant"
    outputs = []
    for engine in (recorded(), EAGER):
        generator = make(engine, name, controller, StrictRule())
        if why == "--trace":
            traced(generator)
        outputs.append([h["tokens"].tolist() for (h,) in generator.generate([], make_batch([5]))])
        assert generator.engines.name == "eager"
        reasons = generator.engines.fallbacks
        assert (len(reasons) == 1 and why in reasons[0]) if engine is not EAGER else not reasons
    assert outputs[0] == outputs[1]
    assert why in caplog.text


def test_a_batch_with_a_prefix_goes_by_the_ordinary_loop(caplog: pytest.LogCaptureFixture) -> None:
    """The others do not, and the engine's name says both."""
    outputs = []
    for engine in (recorded(), EAGER):
        generator = make(engine, "causal", "constant", StrictRule())
        batches = (None, torch.tensor([[7, 6]]), None)
        found = [generator.generate([], make_batch([5]), prefix_tokens=one) for one in batches]
        outputs.append([h["tokens"].tolist() for ((h,),) in found])
        names = "cuda-graphs and eager" if engine is not EAGER else "eager"
        assert generator.engines.name == names
        prefixed = ["targets begin with forced tokens"]
        assert generator.engines.fallbacks == (prefixed if engine is not EAGER else [])
    assert outputs[0] == outputs[1]
    assert outputs[0][1][:2] == [7, 6]
    assert caplog.text.count("targets begin with forced tokens") == 1
