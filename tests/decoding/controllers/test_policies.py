"""Each controller's rule, on drafts and results made by hand."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.decoding.scripted import ScriptedHead, make_result
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.decoding.controllers.simple import (
    AcceptanceHeadController,
    Confidence,
    Heuristic,
    Tree,
    best_threshold,
)
from specdec_plugins.decoding.drafts import ChainDraft


def draft(confidences: list[list[float]]) -> ChainDraft:
    known = torch.tensor(confidences)
    rows, slots = known.shape
    tokens, states = torch.zeros(rows, slots).long(), torch.zeros(rows, slots, 1)
    return ChainDraft(tokens, [slots] * rows, states, known)


@pytest.mark.parametrize(("rows", "length"), [(1, 9), (2, 9), (3, 0)])
def test_a_batch_that_is_too_large_for_trees(rows: int, length: int) -> None:
    """It stays without drafts when rows have been finished; the next one is looked at anew."""
    tree = Tree(tree_nodes=9, max_rows=2)
    assert tree.start(rows) == [length] * rows
    assert tree.observe(make_result([0], [length])) == [length]
    assert tree.start(2) == [9] * 2


def test_heuristic() -> None:
    controller = Heuristic().ready(8)
    assert controller.start(5) == [8] * 5
    result = make_result([4, 7, 8, 3, 0], [4, 7, 8, 4, 1])
    assert controller.observe(result) == [6, 8, 8, 3, 1]


@pytest.mark.parametrize("remember", [True, False])
@given(
    first=st.integers(1, 6),
    sentences=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=6), max_size=6),
)
def test_one_sentence_after_another_as_in_transformers(
    remember: bool, first: int, sentences: list[list[int]]
) -> None:
    """Its ``update_candidate_strategy``, of ``num_assistant_tokens``, with which every sentence
    begins (``heuristic_transient``), or which stays (``heuristic``); at most 6 here."""
    controller = Heuristic(initial_draft=first, remember_draft=remember).ready(6)
    tokens = first
    for steps in sentences:
        tokens = tokens if remember else first
        (length,) = controller.start(1)
        for number, step in enumerate(steps, start=1):
            assert length == tokens
            accepted = min(step, tokens)
            end = (0,) if number == len(steps) else ()
            (length,) = controller.observe(make_result([accepted], [tokens], finished=end))
            tokens = min(6, tokens + 2) if accepted == tokens else max(1, tokens - 1)


def test_confidence() -> None:
    controller = Confidence().ready(4)
    assert controller.start(5) == controller.observe(make_result([0] * 5, [1] * 5)) == [4] * 5
    rows = [[0.3, 0.9, 0.9, 0.9], [0.9, 0.5, 0.3, 0.9], [0.9] * 4, [0.4] * 3 + [0.39], [0.4] * 4]
    assert controller.verify_lengths(draft(rows)).tolist() == [0, 2, 4, 3, 4]


@given(rows=st.lists(st.lists(st.floats(0, 1), min_size=4, max_size=4), min_size=1, max_size=5))
def test_no_draft_is_cut_shorter_than_min_draft(rows: list[list[float]]) -> None:
    """SpecDec++'s ``--bound MIN MAX``: above MIN the rule decides as ever; MAX is the block's."""
    head = ScriptedHead(lambda states, confidences: confidences)
    for kind in (Confidence, AcceptanceHeadController):
        free = kind().ready(4, head).verify_lengths(draft(rows)).tolist()
        for minimum in range(7):
            bounded = kind(min_draft=minimum).ready(4, head)
            lengths = bounded.verify_lengths(draft(rows))
            assert lengths.tolist() == [max(length, minimum) for length in free]
            assert draft(rows).cut(lengths.tolist()).drafted == [
                min(n, 4) for n in lengths.tolist()
            ]


class TestThreshold:
    @given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=12))
    def test_brute_force(self, slots: list[tuple[int, bool]]) -> None:
        found = best_threshold([(p / 6, accepted) for p, accepted in slots], 0.4)
        goods, bads = [p / 6 for p, a in slots if a], [p / 6 for p, a in slots if not a]
        if not goods or not bads:
            # One fate teaches nothing.
            assert found == 0.4
            return

        def cost(threshold: float) -> float:
            lost = sum(p < threshold for p in goods) / len(goods)
            return sum(p >= threshold for p in bads) / len(bads) + 3 * lost

        assert cost(found) == pytest.approx(min(cost(p / 6) for p, _ in slots))

    def test_a_refit_follows_what_was_judged(self) -> None:
        """Of the slots, the second is likely and wrong, the third is never judged."""
        controller, fixed = (Confidence(refit_threshold=refit).ready(3) for refit in (True, False))
        slots = draft([[0.9, 0.8, 0.7]])
        for one in (controller, fixed):
            for _ in range(controller.PERIOD):
                assert one.verify_lengths(slots).tolist() == [3]
                assert one.observe(make_result([1], [3])) == [3]
        assert controller._threshold == pytest.approx(0.9)
        assert controller.verify_lengths(slots).tolist() == [1]
        assert fixed.verify_lengths(slots).tolist() == [3]


NAN = math.nan


@pytest.mark.parametrize(
    ("threshold", "verified"),
    [
        (0.5, [2, 0, 3, 1]),
        (0.2, [1, 0, 3, 1]),
        (0.0, [0, 0, 3, 1]),
        (1.0, [3, 3, 3, 1]),
    ],
)
def test_acceptance_head(threshold: float, verified: list[int]) -> None:
    """What is no number does not survive."""
    head = ScriptedHead(lambda states, confidences: 1 - confidences)
    controller = AcceptanceHeadController(stop_threshold=threshold).ready(3, head)
    rows = [[0.125, 0.25, 0.5], [0.75, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, NAN, 0.0]]
    assert controller.verify_lengths(draft(rows)).tolist() == verified
    assert controller.start(4) == controller.observe(make_result([0] * 4, [3] * 4)) == [3] * 4
