"""The stopping threshold that follows from costs: it makes tokens a second the most."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from scripted import ScriptedHead, make_result
from test_policies import draft

from specdec_plugins.decoding.controllers import Bounds
from specdec_plugins.decoding.controllers.acceptance_head import CostStopping
from specdec_plugins.decoding.controllers.costs import StepCosts

MOST = 8
HEAD = ScriptedHead(lambda states, confidences: confidences)


def linear(draft_seconds: float, fixed: float, slot: float, rows: int = 4) -> StepCosts:
    """The same for any number of rows."""
    slots = np.tile(np.arange(MOST + 1.0), (rows + 1, 1))
    return StepCosts(np.where(slots > 0, draft_seconds, 0.0), fixed + slot * slots)


def make(costs: StepCosts, least: int = 0) -> CostStopping:
    controller = CostStopping(Bounds(least, MOST), HEAD)
    controller.learn_costs(costs)
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


def rate(lengths: list[int], kinds: list[list[float]], costs: StepCosts) -> float:
    """Tokens a second of verifying so many slots of each kind."""
    tokens = sum(1 + np.cumprod(known)[:m].sum() for m, known in zip(lengths, kinds))
    seconds = sum(costs.draft[1, MOST] + costs.verify[1, m] for m in lengths)
    return float(tokens / seconds)


@examples(15)
@given(
    draft_seconds=st.floats(0.05, 1.0),
    slot=st.floats(0.005, 0.6),
    kinds=st.lists(
        st.lists(st.floats(0.05, 1.0), min_size=MOST, max_size=MOST), min_size=1, max_size=2
    ),
    seed=st.integers(0, 9),
)
def test_no_other_lengths_commit_more_a_second(
    draft_seconds: float, slot: float, kinds: list[list[float]], seed: int
) -> None:
    """All pairs of lengths are tried; what was drawn is not quite what was to be expected."""
    costs = linear(draft_seconds, 1.0, slot)
    found = run(make(costs), kinds, 3000, seed)
    every = np.ndindex(*[MOST + 1] * len(kinds))
    best = max(rate(list(lengths), kinds, costs) for lengths in every)
    assert rate(found, kinds, costs) >= 0.985 * best


def test_by_hand() -> None:
    """A step takes 1 s and a slot 0.1 s more. With 1 token a step, a token costs 1 s, so that a
    slot must survive with 0.1: a rejection may be as probable as 0.9."""
    controller = make(linear(0.4, 0.6, 0.1))
    assert controller._worth == pytest.approx([0.1] * 5)
    assert controller.verify_lengths(draft([[0.5] * MOST])).tolist() == [3]
    assert make(linear(0.4, 0.6, 0.1), 5).verify_lengths(draft([[0.5] * MOST])).tolist() == [5]
    # Four tokens of 1.3 s, and 0.325 s each: 1000 of them count as much as is remembered.
    for _ in range(2000):
        controller.observe(make_result([3], [3]))
    assert controller._worth == pytest.approx([0.1 / 0.325] * 5, abs=2e-3)
    assert controller.verify_lengths(draft([[0.5] * MOST])).tolist() == [1]


def test_what_is_free_is_verified() -> None:
    assert make(linear(1.0, 1.0, 0.0)).verify_lengths(draft([[0.01] * MOST])).tolist() == [MOST]


def test_rows_are_cut_alike() -> None:
    """By the mean: 0.5, and 0.17 for two slots."""
    controller = make(linear(0.4, 0.6, 0.2))
    rows = draft([[0.9] + [0.3] * (MOST - 1), [0.1] * MOST])
    assert controller.verify_lengths(rows).tolist() == [1, 1]
    alone = [controller.verify_lengths(draft([row])).tolist() for row in rows.confidences.tolist()]
    assert alone == [[2], [0]]
    assert torch.equal(controller.predicted, draft([[0.1] * MOST]).confidences)  # for a trace


def test_costs_are_those_of_as_many_rows() -> None:
    slots = np.arange(MOST + 1.0)
    verify = np.stack([1 + 0.1 * slots, 1 + 0.1 * slots, 1 + 0.4 * slots])
    controller = make(StepCosts(np.zeros((3, MOST + 1)), verify))
    assert controller._worth == pytest.approx([0.1, 0.1, 0.4])
    rows = draft([[0.5] * MOST] * 2)
    assert controller.verify_lengths(rows).tolist() == [1, 1]
    assert torch.equal(controller.verify_lengths(draft([[0.5] * MOST])), torch.tensor([3]))
