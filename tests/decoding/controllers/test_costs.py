"""Costs between what was measured."""

from __future__ import annotations

from specdec_plugins.decoding.controllers.costs import StepCosts


def test_between_what_was_measured() -> None:
    measured = {
        1: {"draft": [[0, 0.0], [2, 2.0]], "verify": [[0, 1.0], [2, 3.0], [4, 4.0]]},
        4: {"draft": [[0, 0.0], [2, 8.0]], "verify": [[0, 4.0], [2, 6.0], [4, 7.0]]},
    }
    costs = StepCosts.between(measured, 4, 4)
    assert costs.draft.shape == costs.verify.shape == (5, 5)
    assert costs.draft[1].tolist() == [0, 1, 2, 2, 2]
    assert costs.draft[3].tolist() == [0, 3, 6, 6, 6]
    assert costs.verify[1].tolist() == [1, 2, 3, 3.5, 4]
    assert costs.verify[4].tolist() == [4, 5, 6, 6.5, 7]
    assert costs.verify[2].tolist() == [2, 3, 4, 4.5, 5]
    assert costs.verify[0].tolist() == costs.verify[1].tolist()


def test_what_is_padded_costs_what_it_is_padded_to() -> None:
    """A fourth slot costs nothing more where a second one brings a third and a fourth."""
    measured = {1: {"draft": [[0, 0.0], [5, 5.0]], "verify": [[0, 1.0], [4, 3.0], [5, 6.0]]}}
    costs = StepCosts.between(measured, 1, 5, lambda slots: 4 * -(-slots // 4))
    assert costs.draft[1].tolist() == [0, 1, 2, 3, 4, 5]
    # The most is measured itself, padding included.
    assert costs.verify[1].tolist() == [1, 3, 3, 3, 3, 6]


def test_what_was_disturbed_costs_no_more_than_more() -> None:
    measured = {1: {"draft": [[0, 0.0], [1, 9.0], [2, 3.0]], "verify": [[0, 5.0], [2, 4.0]]}}
    costs = StepCosts.between(measured, 1, 2)
    assert costs.draft[1].tolist() == [0, 3, 3]
    assert costs.verify[1].tolist() == [4, 4, 4]
