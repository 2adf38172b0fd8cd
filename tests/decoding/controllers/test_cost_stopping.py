"""The stopping threshold that follows from costs: it makes tokens a second the most."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conftest import examples, make_batch, make_dictionary, make_task, make_verifier
from controlled import HEAD as MODELS_HEAD
from drafters import make_causal
from hypothesis import given
from hypothesis import strategies as st
from scripted import ScriptedHead, make_result
from test_policies import draft

from specdec_plugins.decoding.acceptance import SamplingRule
from specdec_plugins.decoding.build import build_generator
from specdec_plugins.decoding.controllers import Bounds, ControllerOptions
from specdec_plugins.decoding.controllers.acceptance_head import CostStopping
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.statistics import DecodingStatistics

MOST = 8
HEAD = ScriptedHead(lambda states, confidences: confidences)


def make(fixed: float, slot: float, least: int = 0) -> CostStopping:
    """Steps take so long for any number of rows: ``fixed``, and ``slot`` for each that is
    verified."""
    controller = CostStopping(Bounds(least, MOST), HEAD)
    controller.learn_costs(np.full(5, fixed), np.full(5, fixed + MOST * slot))
    return controller


def run(controller: CostStopping, kinds: list[list[float]], steps: int, seed: int) -> list[int]:
    """Steps of drafts of several kinds, by turns, whose tokens are accepted as often as they say;
    and what is verified of each kind in the end."""
    random = np.random.default_rng(seed)
    for step in range(steps):
        known = kinds[step % len(kinds)]
        (verified,) = controller.verify_lengths(draft([known])).tolist()
        good = random.random(verified) < np.array(known[:verified])
        controller.observe(make_result([int(good.cumprod().sum())], [verified], [MOST]))
    return [int(controller.verify_lengths(draft([known]))[0]) for known in kinds]


def rate(lengths: list[int], kinds: list[list[float]], fixed: float, slot: float) -> float:
    """Tokens a second of verifying so many slots of each kind."""
    tokens = sum(1 + np.cumprod(known)[:m].sum() for m, known in zip(lengths, kinds))
    return float(tokens / sum(fixed + slot * m for m in lengths))


@examples(10)
@given(
    fixed=st.floats(1.05, 2.0),
    slot=st.floats(0.005, 0.6),
    kinds=st.lists(
        st.lists(st.floats(0.05, 1.0), min_size=MOST, max_size=MOST), min_size=1, max_size=2
    ),
    seed=st.integers(0, 9),
)
def test_no_other_lengths_commit_more_a_second(
    fixed: float, slot: float, kinds: list[list[float]], seed: int
) -> None:
    """All pairs of lengths are tried; what was drawn is not quite what was to be expected."""
    found = run(make(fixed, slot), kinds, 3000, seed)
    every = np.ndindex(*[MOST + 1] * len(kinds))
    best = max(rate(list(lengths), kinds, fixed, slot) for lengths in every)
    assert rate(found, kinds, fixed, slot) >= 0.985 * best


def test_by_hand() -> None:
    """A step takes 1 s and a slot 0.1 s more. With 1 token a step, a token costs 1 s, so that a
    slot must survive with 0.1: a rejection may be as probable as 0.9."""
    controller = make(1.0, 0.1)
    assert controller._worth == pytest.approx([0.1] * 5)
    assert controller.verify_lengths(draft([[0.5] * MOST])).tolist() == [3]
    assert make(1.0, 0.1, 5).verify_lengths(draft([[0.5] * MOST])).tolist() == [5]
    # Four tokens of 1.3 s, and 0.325 s each: 1000 of them count as much as is remembered.
    for _ in range(2000):
        controller.observe(make_result([3], [3]))
    assert controller._worth == pytest.approx([0.1 / 0.325] * 5, abs=2e-3)
    assert controller.verify_lengths(draft([[0.5] * MOST])).tolist() == [1]


def test_what_is_free_is_verified() -> None:
    assert make(2.0, 0.0).verify_lengths(draft([[0.01] * MOST])).tolist() == [MOST]


def test_rows_are_cut_alike() -> None:
    """By the mean: 0.5, and 0.17 for two slots."""
    controller = make(1.0, 0.2)
    rows = draft([[0.9] + [0.3] * (MOST - 1), [0.1] * MOST])
    assert controller.verify_lengths(rows).tolist() == [1, 1]
    alone = [controller.verify_lengths(draft([row])).tolist() for row in rows.confidences.tolist()]
    assert alone == [[2], [0]]
    assert torch.equal(controller.predicted, draft([[0.1] * MOST]).confidences)  # for a trace


def test_costs_are_those_of_as_many_rows() -> None:
    controller = CostStopping(Bounds(0, MOST), HEAD)
    controller.learn_costs(np.ones(3), 1 + MOST * np.array([0.1, 0.1, 0.4]))
    assert controller._worth == pytest.approx([0.1, 0.1, 0.4])
    rows = draft([[0.5] * MOST] * 2)
    assert controller.verify_lengths(rows).tolist() == [1, 1]
    assert torch.equal(controller.verify_lengths(draft([[0.5] * MOST])), torch.tensor([3]))


def test_what_was_disturbed_is_free() -> None:
    """A step that verifies more cannot take less."""
    assert make(1.0, -0.1)._worth.tolist() == [0.0] * 5


K = 4


def make_generator(rule: Any = None, **limits: Any) -> SpeculativeGenerator:
    task = make_task(block_size=K)
    task.verifier = make_verifier()
    return build_generator(
        task.verifier,
        make_causal(task, verifier_features=True),
        make_dictionary(),
        rule=rule,
        limits=GenerationLimits(**{"max_len_b": 12, **limits}),
        options=ControllerOptions("acceptance-head", auto_stop_threshold=True),
        head=MODELS_HEAD,
    )


def sample(rows: int) -> Any:
    return make_batch([3 + row for row in range(rows)])


def test_a_step_has_its_part_of_the_whole_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what decoding takes but the encoder, for as many steps as rows take on average; a first
    time, in which something is compiled, does not count."""
    generator = make_generator()
    controller: Any = generator.controller
    asked: list[int] = []
    # On a device parts are taken from the whole by one clock, too.
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)

    def decode(sample: Any, trial: Any, statistics: DecodingStatistics, *more: Any) -> None:
        rows = len(sample["net_input"]["src_tokens"])
        (verified, *_) = trial.verify_lengths(draft([[0.9] * K] * rows)).tolist()
        asked.append(rows)
        # 4 rows that end after 5, 5, 4 and 2 steps: 4 a row.
        with statistics.stopwatch("encode", torch.device("cuda", 1)):
            pass
        statistics.steps = 4 * rows
        monkeypatch.setattr(statistics.stopwatch, "seconds", lambda: {"encode": 7.0})
        first = asked.count(rows) <= 2
        statistics.total_seconds = 7.0 + 40.0 * first + rows * (8.0 + 2.0 * verified)

    monkeypatch.setattr(generator, "decode", decode)
    controller.prepare(generator, sample(3))
    assert set(asked) == {1, 3}
    assert len(waited) == 2 * len(asked)
    assert controller._fixed.tolist() == [2.0, 2.0, 4.0, 6.0]
    assert controller._slot.tolist() == [0.5, 0.5, 1.0, 1.5]


def test_measured_before_a_batch_that_is_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = make_generator()
    controller: Any = generator.controller
    known: list[int] = []
    learn = controller.learn_costs
    monkeypatch.setattr(controller, "learn_costs", lambda *a: (known.append(len(a[0])), learn(*a)))
    for rows in (2, 1, 2, 3):
        generator.generate([], sample(rows))
    assert known == [3, 4]
    assert generator.statistics.sentences == 8
    assert (controller._fixed > 0).all()


@pytest.mark.parametrize(
    "limits", [{"max_len_b": 1}, {"max_len_a": 2, "max_len_b": 0, "min_len": 5}]
)
def test_measured_whatever_the_limits(limits: dict[str, int]) -> None:
    """Also those that only real sentences meet."""
    generator = make_generator(**limits)
    generator.generate([], sample(2))
    assert (generator.controller._fixed > 0).all()  # type: ignore[attr-defined]


def test_measuring_leaves_no_trace() -> None:
    """In the output, and in what is drawn later."""
    batch = make_batch([5, 3, 9])
    generator = make_generator()
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    found = generator.generate([], batch)
    assert torch.equal(torch.rand(3), expected)
    limits = GenerationLimits(max_len_b=12)
    plain = build_generator(generator.model, None, make_dictionary(), limits=limits)
    for (ours,), (theirs,) in zip(found, plain.generate([], batch)):
        assert ours["tokens"].tolist() == theirs["tokens"].tolist()
    assert generator.statistics.sentences == 3
    sampler = make_generator(SamplingRule())
    torch.manual_seed(1)
    sampler.controller.prepare(sampler, batch)
    assert torch.equal(torch.rand(3), expected)
