"""What happened to slots and nodes, and to confidences like these, tells how they will fare."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scripted import make_result

from specdec_plugins.decoding.controllers.averages import (
    CalibratedConfidence,
    NodeAverages,
    RunningRates,
    SlotAverages,
)

STATES = torch.zeros(2, 3, 1)
CONFIDENCES = torch.tensor([[0.95, 0.42, 1.0], [0.97, 0.48, 0.0]])


def test_old_cases_lose_their_weight() -> None:
    rates = RunningRates(np.array([0.5, 0.5]), 4.0)
    assert rates.rates.tolist() == [0.5, 0.5]
    rates.note(np.array([3.0, 0.0]), np.array([4.0, 0.0]))
    kept = 1000 / 1004
    assert rates.rates == pytest.approx([(2 * kept + 3) / (4 * kept + 4), 0.5])
    for _ in range(100):
        rates.note(np.array([0.0, 40.0]), np.array([40.0, 40.0]))
    assert rates.rates[0] < 0.05
    assert rates.rates[1] > 0.95


def test_to_begin_with_it_believes_the_drafter() -> None:
    found = CalibratedConfidence()(STATES, CONFIDENCES)
    torch.testing.assert_close(found, torch.tensor([[0.95, 0.45, 0.95], [0.95, 0.45, 0.05]]))


def test_bins_become_what_happened_in_them() -> None:
    calibrated = CalibratedConfidence()
    for _ in range(200):
        calibrated(STATES, CONFIDENCES)
        # Row 0: the second slot rejected; row 1: two accepted, the second ends the sentence.
        calibrated.learn(make_result([1, 2], [3, 3], ended=(1,)))
    found = calibrated(STATES, CONFIDENCES)
    # 0.9 and above: always accepted (the last slot of row 0 was never judged); 0.4: half.
    torch.testing.assert_close(found[0, :2], torch.tensor([1.0, 0.5]), atol=1e-2, rtol=0)
    # Below 0.1: never judged.
    torch.testing.assert_close(found[1, 2], torch.tensor(0.05))


def test_what_was_not_asked_about_teaches_nothing() -> None:
    """Neither a step without a question, nor one that is learned from twice."""
    calibrated, rejected = CalibratedConfidence(), make_result([0, 0], [3, 3])
    calibrated.learn(rejected)
    believed = CalibratedConfidence()(STATES, CONFIDENCES)
    assert torch.equal(calibrated(STATES, CONFIDENCES), believed)
    once, twice = CalibratedConfidence(), CalibratedConfidence()
    for one, times in ((once, 1), (twice, 2)):
        one(STATES, CONFIDENCES)
        for _ in range(times):
            one.learn(rejected)
    assert not torch.equal(once(STATES, CONFIDENCES), believed)
    assert torch.equal(once(STATES, CONFIDENCES), twice(STATES, CONFIDENCES))


def learned(rates: list[float], seen: list[float], happened: list[float]) -> np.ndarray:
    """Rates that were believed with the prior's weight, and the cases after them."""
    running = RunningRates(np.array(rates), SlotAverages.PRIOR[1])
    running.note(np.array(happened), np.array(seen))
    return running.rates


def test_averages_are_of_judged_slots_only() -> None:
    """Rejected in slot 2; all accepted; ended within the draft, so that the last accepted slot is
    an EOS, which gains nothing, nor do those after it; rejected in the first slot; and ended by
    the length limit after the first, so that nothing is known of the second."""
    averages = SlotAverages(5)
    rate, _ = SlotAverages.PRIOR
    assert averages.survival() == pytest.approx(rate ** np.arange(1.0, 6))
    averages.note(make_result([2, 5, 3, 0, 1], [5] * 5, ended=(2,), limited=(4,)))
    averages.learn()
    expected = learned([rate] * 5, seen=[5, 3, 3, 1, 1], happened=[4, 3, 1, 1, 1])
    assert averages.survival() == pytest.approx(expected.cumprod())


def test_averages_of_nodes() -> None:
    """Of new trees only."""
    averages = NodeAverages(5)
    before = SlotAverages.PRIOR[0] ** np.arange(1.0, 6)
    assert averages.survival() == pytest.approx(before)
    # The first and the fourth node accepted; nothing; the first, and the second, an EOS; of the
    # fourth row's three nodes the third; and all of what was left of a draft.
    nodes = [[1, 4], [], [1, 2], [3], [1, 2, 3]]
    result = make_result(
        [2, 0, 2, 1, 3],
        [5, 5, 5, 3, 3],
        nodes=nodes,
        ended=(2,),
        called=[True] * 4 + [False],
    )
    for _ in range(2):
        averages.note(result)
    averages.learn()
    expected = learned(list(before), seen=[8, 8, 8, 6, 6], happened=[4, 0, 2, 2, 0])
    assert averages.survival() == pytest.approx(expected)
