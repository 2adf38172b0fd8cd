"""Each policy's rule, on tensors made by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scripted import ScriptedHead

from specdec_plugins.decoding.controllers import Bounds, Constant, Draft, Outcome
from specdec_plugins.decoding.controllers.oracle import Oracle
from specdec_plugins.decoding.controllers.policies import (
    AcceptanceHead,
    Confidence,
    Heuristic,
    Tree,
    best_threshold,
)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values)


def outcome(drafted: list[int], accepted: list[int], rejected: list[int] | None = None) -> Outcome:
    told = [torch.tensor(values) for values in (drafted, accepted)]
    stopped = [a < d for a, d in zip(accepted, drafted)] if rejected is None else rejected
    refused = torch.tensor(stopped).bool()
    ended = ~refused & (told[1] < told[0])
    return Outcome(told[0], told[0], told[1], refused, ended, told[1] + 1)


def draft(probabilities: list[list[float]]) -> Draft:
    known = torch.tensor(probabilities)
    return Draft(torch.zeros(known.shape).long(), torch.zeros(*known.shape, 1), known)


def test_constant_says_nothing() -> None:
    controller = Constant(Bounds(0, 3))
    assert controller.length == 3
    assert not controller.cuts
    assert not controller.reads_probabilities
    assert controller.start(torch.zeros(2).long()) is None


@pytest.mark.parametrize(
    ("bounds", "following"), [((0, 8), [6, 8, 8, 3, 1]), ((4, 6), [6, 6, 6, 4, 4])]
)
def test_heuristic(bounds: tuple[int, int], following: list[int]) -> None:
    controller = Heuristic(Bounds(*bounds))
    assert controller.start(torch.zeros(5).long()).tolist() == [bounds[1]] * 5
    lengths = controller.draft_lengths(outcome([4, 7, 8, 4, 1], [4, 7, 8, 3, 0]))
    assert lengths.tolist() == following


@pytest.mark.parametrize(
    ("bounds", "verified"), [((0, 4), [0, 2, 4, 3, 4]), ((1, 3), [1, 2, 3, 3, 3])]
)
def test_confidence(bounds: tuple[int, int], verified: list[int]) -> None:
    controller = Confidence(Bounds(*bounds), 0.4)
    assert controller.start(torch.zeros(5).long()) is None
    rows = [[0.3, 0.9, 0.9, 0.9], [0.9, 0.5, 0.3, 0.9], [0.9] * 4, [0.4] * 3 + [0.39], [0.4] * 4]
    drafted = torch.full((5,), bounds[1])
    assert controller.verify_lengths(draft(rows), drafted).tolist() == verified
    few = torch.tensor([0, 1, 2, 3, 1]).clamp(max=bounds[1])
    found = controller.verify_lengths(draft(rows), few)
    assert (found <= few).all()


class TestThreshold:
    def test_perfect_separation(self) -> None:
        known, good = tensor(0.1, 0.7, 0.3, 0.9), tensor(0, 1, 0, 1)
        assert float(best_threshold(known, good, 0.4)) == pytest.approx(0.7)

    def test_a_lost_good_slot_weighs_three_bad_ones(self) -> None:
        # Taking 0.2 too loses 2 of 3 bad slots; leaving it out loses 1 of 2 good ones.
        known, good = tensor(0.9, 0.2, 0.5, 0.4, 0.1), tensor(1, 1, 0, 0, 0)
        assert float(best_threshold(known, good, 0.4)) == pytest.approx(0.2)
        assert float(best_threshold(known, good, 0.4, weight=1.0)) == pytest.approx(0.9)

    @pytest.mark.parametrize("fate", [0.0, 1.0])
    def test_one_fate_teaches_nothing(self, fate: float) -> None:
        assert float(best_threshold(tensor(0.2, 0.8), tensor(fate, fate), 0.37)) == pytest.approx(
            0.37
        )

    @given(
        slots=st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=12),
        unknown=st.integers(0, 3),
    )
    def test_brute_force(self, slots: list[tuple[int, bool]], unknown: int) -> None:
        known = torch.tensor([p / 6 for p, _ in slots] + [torch.nan] * unknown)
        good = torch.tensor([float(a) for _, a in slots] + [0.0] * unknown)
        found = float(best_threshold(known, good, 0.4))
        goods, bads = [p / 6 for p, a in slots if a], [p / 6 for p, a in slots if not a]
        if not goods or not bads:
            assert found == pytest.approx(0.4)
            return

        def cost(threshold: float) -> float:
            lost = sum(p < threshold - 1e-6 for p in goods) / len(goods)
            return sum(p >= threshold - 1e-6 for p in bads) / len(bads) + 3 * lost

        assert cost(found) == pytest.approx(min(cost(p / 6) for p, _ in slots), abs=1e-5)

    def test_a_refit_follows_what_was_judged(self) -> None:
        controller = Confidence(Bounds(0, 3), 0.4, refit=True)
        assert controller.start(torch.zeros(1).long()) is not None
        for _ in range(controller.PERIOD):
            # The second slot is likely and wrong, the third is never judged.
            controller.verify_lengths(draft([[0.9, 0.8, 0.7]]), tensor(3).long())
            assert controller.draft_lengths(outcome([3], [1])).tolist() == [3]
        assert float(controller.threshold) == pytest.approx(0.9)
        assert controller.verify_lengths(draft([[0.9, 0.8, 0.7]]), tensor(3).long()).tolist() == [1]

    def test_only_recent_slots_count(self) -> None:
        controller = Confidence(Bounds(0, 2), 0.4, refit=True)
        controller.start(torch.zeros(64).long())
        for wrong, steps in ((0.8, 8), (0.3, 16)):
            for _ in range(steps):
                controller.verify_lengths(draft([[0.9, wrong]] * 64), torch.full((64,), 2))
                controller.draft_lengths(outcome([2] * 64, [1] * 64))
        recent: Any = controller._recent
        assert len(recent) == controller.RECENT
        assert not (recent[:, 0] - 0.8).abs().lt(1e-6).any()

    def test_slots_after_an_accepted_end_are_not_judged(self) -> None:
        controller = Confidence(Bounds(0, 3), 0.4, refit=True)
        controller.start(torch.zeros(1).long())
        controller.verify_lengths(draft([[0.9, 0.8, 0.7]]), tensor(3).long())
        controller.draft_lengths(outcome([3], [2], rejected=[0]))
        recent: Any = controller._recent
        assert sorted(recent[~recent[:, 0].isnan()].tolist()) == [
            pytest.approx([0.8, 1]),
            pytest.approx([0.9, 1]),
        ]


@pytest.mark.parametrize(
    ("threshold", "least", "verified"),
    [
        (0.5, 0, [2, 0, 3]),
        (0.2, 0, [1, 0, 3]),
        (0.2, 1, [1, 1, 3]),
        (0.0, 0, [0, 0, 3]),
        (1.0, 0, [3, 3, 3]),
    ],
)
def test_acceptance_head(threshold: float, least: int, verified: list[int]) -> None:
    head = ScriptedHead(lambda states, probabilities: 1 - probabilities)
    controller = AcceptanceHead(Bounds(least, 3), head, threshold)
    rows = draft([[0.125, 0.25, 0.5], [0.75, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert controller.verify_lengths(rows, torch.full((3,), 3)).tolist() == verified


def test_a_tree_of_what_is_left() -> None:
    """What each row promises is compared, whatever the others do; nothing is no promise."""
    controller = Tree(Bounds(0, 9), 4, redraft_below=1.5)
    assert controller.redrafts([1.0, 1.5, 9.0]) == [True, False, False]
    assert controller.redrafts([1.0]) == [True]
    assert Tree(Bounds(0, 9), 4, math.inf).redrafts([9.0]) == [True]
    assert Tree(Bounds(0, 9), 4, 0.0).redrafts([0.0, 1e-9]) == [True, False]


def test_oracle_knows_the_first_passes_steps() -> None:
    class Generator:
        controller: Any = Constant(Bounds(0, 3))
        statistics = recorder = limits = None
        block_size = 3

        def generate(self, models: Any, sample: Any) -> Any:
            assert type(self.controller) is Constant
            # Committed: 3 + 1, 0 + 1, and 2 with the end among them; 0 + 1 and 1.
            return [
                [{"tokens": torch.zeros(7), "accepted": [3, 0, 2]}],
                [{"tokens": torch.zeros(2), "accepted": [0, 1]}],
            ]

    controller = Oracle(Bounds(0, 3))
    generator = Generator()
    controller.prepare(generator, {"net_input": {"src_tokens": torch.zeros(2, 1)}})
    assert generator.controller is Generator.controller
    drafted = controller.start(torch.tensor([0, 0]))
    assert drafted.tolist() == [3, 0]
    assert controller.verify_lengths(draft([[0.5] * 3] * 2), drafted).tolist() == [3, 0]
    step = outcome([3, 0], [3, 0])
    assert step.lengths.tolist() == [4, 1]
    drafted = controller.draft_lengths(step)
    assert drafted.tolist() == [0, 3]
    assert controller.verify_lengths(draft([[0.5] * 3] * 2), drafted).tolist() == [0, 1]
    controller.keep(torch.tensor([0]))
    # Where the first pass did not stop, nothing is known.
    assert controller.draft_lengths(outcome([0], [1])).tolist() == [3]
