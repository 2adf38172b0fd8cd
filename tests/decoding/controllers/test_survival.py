"""What happened to slots and nodes, and to confidences like these, tells how they will fare."""

from __future__ import annotations

import torch
from scripted import make_path

from specdec_plugins.decoding.controllers import Outcome
from specdec_plugins.decoding.controllers.survival import (
    CalibratedConfidence,
    NodeAverages,
    SlotAverages,
)

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


def test_averages_are_of_judged_slots_only() -> None:
    averages = SlotAverages(5, torch.device("cpu"))
    drafted = torch.full((4,), 5)
    # Rejected in slot 2; all accepted; ended within the draft, so that the last accepted slot is
    # an EOS, which gains nothing; rejected in the first slot.
    accepted = torch.tensor([2, 5, 3, 0])
    rejected = torch.tensor([True, False, False, True])
    ended = torch.tensor([False, False, True, False])
    averages.note(Outcome(drafted, drafted, accepted, rejected, ended, accepted))
    averages.learn()
    rate, weight = averages.PRIOR
    judged = torch.tensor([4.0, 3, 3, 1, 1])
    kept = averages.WINDOW / (averages.WINDOW + judged)
    found = kept * rate * weight + torch.tensor([3.0, 3, 1, 1, 1])
    torch.testing.assert_close(averages.survival(), (found / (kept * weight + judged)).cumprod(0))


def test_averages_of_nodes() -> None:
    averages = NodeAverages(5, torch.device("cpu"))
    rate, weight = averages.PRIOR
    torch.testing.assert_close(averages.survival(), rate ** torch.arange(1.0, 6))
    # The first and the fourth node accepted; nothing; the first, and the second, an EOS; of the
    # last row's three nodes the third.
    nodes = torch.tensor([[0, 1, 4, 0], [0, 0, 0, 0], [0, 1, 2, 0], [0, 3, 0, 0]])
    accepted, verified = torch.tensor([2, 0, 2, 1]), torch.tensor([5, 5, 5, 3])
    ended = torch.tensor([False, False, True, False])
    path = make_path(nodes, accepted)
    for _ in range(2):
        averages.note(Outcome(verified, verified, accepted, ~ended, ended, accepted, path))
    averages.learn()
    judged = 2 * torch.tensor([4.0, 4, 4, 3, 3])
    kept = averages.WINDOW / (averages.WINDOW + judged)
    prior = kept * weight * rate ** torch.arange(1.0, 6)
    found = prior + 2 * torch.tensor([2.0, 0, 1, 1, 0])
    torch.testing.assert_close(averages.survival(), found / (kept * weight + judged))
