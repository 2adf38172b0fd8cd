"""Interpolation by hand, and what a head saves against constant k."""

from __future__ import annotations

import pytest
from experiments import make_group, make_run
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.evaluation.discards import discards_against_constant, frontier, interpolate
from specdec_plugins.files.output import JsonObject

RATES = st.floats(0, 2)
POINTS = st.lists(st.tuples(RATES, RATES), min_size=1, max_size=12)


class TestInterpolation:
    def test_by_hand(self) -> None:
        points = [(0.5, 0.2), (0.3, 0.8), (0.4, 0.4)]
        assert interpolate(points, 0.45) == pytest.approx(0.3)
        assert interpolate(points, 0.325) == pytest.approx(0.7)

    def test_beyond_the_ends_there_is_nothing(self) -> None:
        points = [(0.3, 0.8), (0.5, 0.2)]
        assert [interpolate(points, at) for at in (0.3, 0.5)] == [0.8, 0.2]
        assert interpolate(points, 0.29) is None
        assert interpolate(points, 0.51) is None
        assert interpolate([], 0.5) is None

    def test_a_single_point(self) -> None:
        assert interpolate([(0.4, 0.3)], 0.4) == 0.3
        assert interpolate([(0.4, 0.3)], 0.41) is None


class TestFrontier:
    def test_by_hand(self) -> None:
        """The third verifies and discards more than the second."""
        points = [(0.5, 0.2), (0.3, 0.8), (0.35, 1.5), (0.4, 0.4), (0.4, 0.6)]
        assert frontier(points) == [(0.3, 0.8), (0.4, 0.4), (0.5, 0.2)]

    @given(POINTS)
    def test_no_point_is_better_than_one_of_it(self, points: list[tuple[float, float]]) -> None:
        best = frontier(points)
        assert set(best) <= set(points)
        for place, height in points:
            assert any(x <= place and y <= height for x, y in best)
        for i, (x, y) in enumerate(best):
            assert all((u > x) == (v < y) for u, v in best[:i] + best[i + 1 :])


CONSTANTS = {
    "constant k 1": (0.5, 0.2),
    "constant k 2": (0.4, 0.4),
    "constant k 3": (0.3, 0.8),
    # Worse in both than k 3: interpolating to it would flatter the head.
    "constant k 4": (0.31, 5.0),
}


def compared(rate: float, verified: float, drafted: float, constants: bool = True) -> JsonObject:
    """A head at these rates against constant k."""
    rates = {**(CONSTANTS if constants else {}), "acceptance-head 0.5 k 3": (rate, verified)}
    runs = [
        make_run(name, verification_rate=x, verified_discard_rate=y, discard_rate=y)
        for name, (x, y) in rates.items()
    ]
    runs[-1] = make_run(
        "acceptance-head 0.5 k 3",
        verification_rate=rate,
        verified_discard_rate=verified,
        discard_rate=drafted,
    )
    (found,) = discards_against_constant(make_group(runs))
    return found


def test_reduction_at_the_same_verification_rate() -> None:
    found = compared(0.35, 0.45, 1.2)
    verified, drafted = found["verified_discard_rate"], found["discard_rate"]
    assert verified["constant"] == pytest.approx(0.6)
    assert verified["reduction_percent"] == pytest.approx(25)
    assert drafted["reduction_percent"] == pytest.approx(-100)
    assert (found["threshold"], found["k"]) == (0.5, 3)


@pytest.mark.parametrize("rate", [0.29, 0.51])
def test_outside_the_constants_nothing_is_said(rate: float) -> None:
    found = compared(rate, 0.1, 0.1)
    assert found["constant_verification_rates"] == [0.3, 0.5]
    assert found["verified_discard_rate"]["constant"] is None
    assert found["verified_discard_rate"]["reduction_percent"] is None


def test_without_constants() -> None:
    assert compared(0.4, 0.1, 0.1, constants=False)["constant_verification_rates"] is None
