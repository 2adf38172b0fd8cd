"""Confidences become acceptance probabilities by what happened to such slots."""

from __future__ import annotations

import torch

from specdec_plugins.decoding.controllers import Outcome
from specdec_plugins.decoding.controllers.survival import CalibratedConfidence

STATES = torch.zeros(2, 3, 1)
CONFIDENCES = torch.tensor([[0.95, 0.42, 1.0], [0.97, 0.48, 0.0]])


def outcome(accepted: list[int], rejected: list[bool]) -> Outcome:
    drafted = torch.tensor([3, 3])
    counts = torch.tensor(accepted)
    stopped = torch.tensor(rejected)
    return Outcome(drafted, drafted, counts, stopped, ~stopped & (counts < drafted), counts + 1)


def test_to_begin_with_it_believes_the_drafter() -> None:
    found = CalibratedConfidence()(STATES, CONFIDENCES)
    torch.testing.assert_close(found, torch.tensor([[0.95, 0.45, 0.95], [0.95, 0.45, 0.05]]))


def test_bins_become_what_happened_in_them() -> None:
    calibrated = CalibratedConfidence()
    for _ in range(200):
        calibrated(STATES, CONFIDENCES)
        # Row 0: the second slot rejected; row 1: two accepted, the second ends the sentence.
        calibrated.learn(outcome([1, 2], [True, False]))
    found = calibrated(STATES, CONFIDENCES)
    # 0.9 and above: always accepted (the last slot of row 0 was never judged); 0.4: half.
    torch.testing.assert_close(found[0, 0], torch.tensor(1.0), atol=1e-2, rtol=0)
    torch.testing.assert_close(found[0, 1], torch.tensor(0.5), atol=1e-2, rtol=0)
    # Below 0.1: never judged.
    torch.testing.assert_close(found[1, 2], torch.tensor(0.05))


def test_what_was_not_asked_about_teaches_nothing() -> None:
    calibrated = CalibratedConfidence()
    before = calibrated(STATES, CONFIDENCES)
    calibrated.learn(outcome([3, 3], [False, False]))
    after = calibrated(STATES, CONFIDENCES)
    assert not torch.equal(before, after)
    calibrated.learn(outcome([0, 0], [True, True]))
    known = calibrated(STATES, CONFIDENCES)
    calibrated._bins = None
    calibrated.learn(outcome([0, 0], [True, True]))
    assert torch.equal(calibrated(STATES, CONFIDENCES), known)


def test_old_slots_fade() -> None:
    calibrated = CalibratedConfidence()
    for accepted in (3, 0):
        for _ in range(3000):
            calibrated(STATES, CONFIDENCES)
            calibrated.learn(outcome([accepted] * 2, [accepted == 0] * 2))
    assert float(calibrated(STATES, CONFIDENCES)[0, 0]) < 0.2
