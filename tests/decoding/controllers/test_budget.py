"""Rows that compete for verified slots: which get them, how many there are, and what is scored."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from conftest import make_batch
from controlled import DRAFTERS, K, make_generator, make_policy
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import ScriptedHead, make_result

from specdec_plugins.decoding.acceptance import AcceptanceRule, RelaxedRule, StrictRule
from specdec_plugins.decoding.controllers import Bounds, Needs
from specdec_plugins.decoding.controllers.budget import CostBudget, VerifyBudget
from specdec_plugins.decoding.controllers.costs import StepCosts
from specdec_plugins.decoding.drafts import ChainDraft
from specdec_plugins.decoding.steps.cached import cached_verifier
from specdec_plugins.decoding.steps.verifier import CachedVerifier
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.sizes import PaddedSizes

pytestmark = pytest.mark.usefixtures("exact_softmax")

GIVEN = ScriptedHead(lambda states, confidences: confidences)
NAN = float("nan")


def draft(probabilities: list[list[float]]) -> ChainDraft:
    known = torch.tensor(probabilities, dtype=torch.float64)
    rows, slots = known.shape
    tokens, lengths = torch.zeros(rows, slots).long(), torch.full((rows,), slots)
    return ChainDraft(tokens, [slots] * rows, lengths, torch.zeros(rows, slots, 1), known)


def spending(budget: int, least: int = 0, most: int = 3) -> VerifyBudget:
    return VerifyBudget(Bounds(least, most), GIVEN, lambda survival: budget)


@pytest.mark.parametrize(
    ("budget", "least", "verified"),
    [
        (1, 0, [0, 1, 0, 0]),
        (3, 0, [1, 2, 0, 0]),
        # 0.9, 0.81 and 0.729 of the second row, 0.8 and 0.64 of the first, 0.5 of the third.
        (6, 0, [2, 3, 1, 0]),
        (6, 1, [2, 3, 1, 1]),
        (99, 0, [3, 3, 3, 3]),
    ],
)
def test_the_likeliest_slots_of_all_rows(budget: int, least: int, verified: list[int]) -> None:
    """What is no number does not survive, and is verified last."""
    rows = [[0.8, 0.8, 0.5], [0.9, 0.9, 0.9], [0.5, 0.9, 1.0], [NAN, 1.0, 1.0]]
    assert spending(budget, least).verify_lengths(draft(rows)).tolist() == verified


def test_a_budget_drafts_whole_blocks() -> None:
    """However few of their slots are verified."""
    controller = spending(2)
    assert controller.needs == Needs(3, confidences=True, whole_draft=True, unpadded=True)
    assert controller.start(2) == controller.observe(make_result([0, 1], [0, 1])) == [3, 3]


PROBABILITIES = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])
BLOCKS = st.integers(1, 4).flatmap(
    lambda slots: st.lists(
        st.lists(PROBABILITIES, min_size=slots, max_size=slots), min_size=1, max_size=5
    )
)


@given(rows=BLOCKS, budget=st.integers(1, 20))
def test_no_other_choice_of_as_many_survives_better(rows: list[list[float]], budget: int) -> None:
    """Also where slots tie, what is verified are beginnings of rows."""
    survival = np.cumprod(rows, axis=1)
    lengths = spending(budget, most=len(rows[0])).verify_lengths(draft(rows)).tolist()
    assert sum(lengths) == min(budget, survival.size)
    found = sum(row[:n].sum() for row, n in zip(survival, lengths))
    assert found == pytest.approx(np.sort(survival, axis=None)[::-1][:budget].sum())


@given(
    rows=BLOCKS,
    drafting=st.floats(0, 3),
    slope=st.floats(0.01, 2),
    curve=st.floats(0, 0.5),
)
def test_auto_commits_most_tokens_a_second(
    rows: list[list[float]], drafting: float, slope: float, curve: float
) -> None:
    """Expected of the survival probabilities, for the costs of as many slots."""
    count, slots = len(rows), len(rows[0])
    width = np.arange(slots + 1.0)
    verify = np.stack([1 + slope * n * width + curve * width**2 for n in (1, *range(1, count + 1))])
    table = np.full_like(verify, drafting)
    controller = CostBudget(Bounds(0, slots), GIVEN)
    controller.tell(StepCosts(table, verify))
    spent = int(controller.verify_lengths(draft(rows)).sum())
    ordered = np.sort(np.cumprod(rows, axis=1), axis=None)[::-1]

    def rate(budget: int) -> float:
        seconds = drafting + np.interp(budget / count, width, verify[count])
        return float((count + ordered[:budget].sum()) / seconds)

    assert rate(spent) == pytest.approx(max(rate(n) for n in range(ordered.size + 1)))


def test_what_a_budget_costs_is_tried_with_as_much_for_each_row() -> None:
    """Also when some have ended."""
    trial = CostBudget(Bounds(0, 3), GIVEN).trial(2)
    for rows in ([[0.5, 0.4, 0.3], [1.0, 1.0, 1.0]], [[0.5, 0.4, 0.3]]):
        assert int(trial.verify_lengths(draft(rows)).sum()) == 2 * len(rows)


BUDGETS = st.one_of(st.just("auto"), st.integers(1, 24).map(str))


@settings(max_examples=60)
@given(
    kind=st.sampled_from(sorted(DRAFTERS)),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    seed=st.integers(0, 99),
    budget=BUDGETS,
    least=st.integers(0, 2),
    rule=st.one_of(
        st.just(StrictRule()),
        st.builds(RelaxedRule, st.sampled_from([3, 5]), st.sampled_from([0.5, 2.0, 4.0])),
    ),
    max_len_b=st.integers(1, 20),
)
def test_nothing_is_scored_but_what_is_verified(
    kind: str,
    lengths: list[int],
    seed: int,
    budget: str,
    least: int,
    rule: AcceptanceRule,
    max_len_b: int,
) -> None:
    """And what comes of it is what comes of padded rows, scores and all."""

    def decode() -> tuple[list[Any], list[int], Any]:
        controller, prepare = make_policy("acceptance-head", K, seed, least, verify_budget=budget)
        generator = make_generator(kind, controller, max_len_b, prepare, rule)
        verifier: Any = generator._scorer.verifier  # type: ignore[union-attr]
        scored, run = [], verifier._run
        verifier._run = lambda *inputs: (scored.append(inputs[2].numel()), run(*inputs))[1]
        found = [h for (h,) in generator.generate([], make_batch(lengths, seed=seed))]
        return found, scored, generator.statistics

    found, scored, told = decode()
    with patch.object(CachedVerifier, "joins", False):
        padded, more, _ = decode()
    assert sum(scored) == told.steps + told.verified_tokens <= sum(more)
    for own, other in zip(found, padded):
        assert own["tokens"].tolist() == other["tokens"].tolist()
        assert own["accepted"] == other["accepted"]
        scores = own["positional_scores"], other["positional_scores"]
        torch.testing.assert_close(*scores, atol=1e-9, rtol=1e-9)


def test_an_engine_of_few_sizes_pads() -> None:
    """As OpenVINO does, which compiles a step for each."""
    engine: Any = EagerEngine("float64")
    verifier = make_generator("causal", spending(2), 9)._scorer.verifier  # type: ignore[union-attr]
    assert verifier.joins
    engine.sizes = PaddedSizes()
    assert not cached_verifier(verifier.model, 1, engine).joins


def test_a_row_has_fewer_verified_beside_others() -> None:
    """Its steps depend on them, its strict output does not."""
    tokens, verified = [], []
    for lengths in ([6], [6, 2, 9, 1, 4, 7, 3, 5]):
        controller, _ = make_policy("acceptance-head", K, verify_budget="4")
        found = make_generator("causal", controller, 12).generate([], make_batch(lengths, seed=1))
        tokens.append(found[0][0]["tokens"].tolist())
        verified.append([[step.verify_length for step in h["trace"]] for (h,) in found])
    assert tokens[0] == tokens[1]
    assert set(verified[0][0]) == {4}
    assert sum(row[0] for row in verified[1]) == 4 > verified[1][0][0]
