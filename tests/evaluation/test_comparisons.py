"""Interpolation by hand, and each question of a sweep."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweeps import make_run

from specdec_plugins.evaluation.comparisons import compare, frontier, interpolate
from specdec_plugins.evaluation.summary import Group, summarize

RATES = st.floats(0, 2)
POINTS = st.lists(st.tuples(RATES, RATES), min_size=1, max_size=12)


def make_group(**systems: dict[str, Any]) -> Group:
    """``name={…}``, where ``_`` is a space and ``__`` a hyphen."""
    runs = [
        make_run(name.replace("__", "-").replace("_", " "), **fields)
        for name, fields in systems.items()
    ]
    (group,) = summarize(runs, [run.system for run in runs])
    return group


def rates(verification: float, discard: float, **fields: Any) -> dict[str, Any]:
    own = {"verification_rate": verification, "verified_discard_rate": discard}
    return {**own, "discard_rate": discard, **fields}


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


class TestAcceptanceHead:
    CONSTANTS: ClassVar[dict[str, Any]] = {
        "constant_k_2": rates(0.5, 0.2),
        "constant_k_4": rates(0.4, 0.4),
        "constant_k_8": rates(0.3, 0.8),
        # Worse in both than k 8: interpolating to it would flatter the head.
        "constant_k_12": rates(0.31, 5.0),
    }

    def compared(self, **fields: Any) -> dict[str, Any]:
        head = {"threshold": 0.7, **fields}
        group = make_group(**self.CONSTANTS, acceptance__head_0_7=head)
        (found,) = compare(group)["acceptance_head_against_constant"]
        return found

    def test_reduction_at_the_same_verification_rate(self) -> None:
        found = self.compared(**{**rates(0.35, 0.45), "discard_rate": 1.2})
        assert not found["outside"]
        verified, drafted = found["verified_discard_rate"], found["discard_rate"]
        assert verified["constant"] == pytest.approx(0.6)
        assert verified["reduction_percent"] == pytest.approx(25)
        assert drafted["reduction_percent"] == pytest.approx(-100)
        assert (found["threshold"], found["k"]) == (0.7, 3)

    @pytest.mark.parametrize("rate", [0.29, 0.51])
    def test_outside_the_constants_is_said(self, rate: float) -> None:
        found = self.compared(**rates(rate, 0.1))
        assert found["outside"]
        assert found["constant_verification_rates"] == [0.3, 0.5]
        assert found["verified_discard_rate"]["constant"] is None
        assert found["verified_discard_rate"]["reduction_percent"] is None

    def test_without_constants(self) -> None:
        group = make_group(acceptance__head_0_7=rates(0.4, 0.1))
        (found,) = compare(group)["acceptance_head_against_constant"]
        assert found["outside"]
        assert found["constant_verification_rates"] is None


def speeds(**systems: float) -> Group:
    return make_group(**{name: {"tokens_per_second": speed} for name, speed in systems.items()})


class TestSpeed:
    def test_the_best_are_compared(self) -> None:
        found = compare(
            speeds(
                AR=10,
                drafter=900,
                constant_k_2=12,
                constant_k_4=15,
                heuristic_k_4=14,
                confidence_k_4=16,
                cost__aware_k_4=18,
                oracle_k_4=24,
            )
        )
        best = found["best_controller_over_best_constant"]
        assert (best["system"], best["over"]) == ("cost-aware k 4", "constant k 4")
        assert best["speed_ratio"]["median"] == pytest.approx(18 / 15)
        (simple,) = found["cost_aware_over_best_simple"]
        assert simple["over"] == "confidence k 4"
        assert simple["speed_ratio"]["median"] == pytest.approx(18 / 16)
        (part,) = found["cost_aware_as_part_of_oracle"]
        assert part["over"] == "oracle k 4"
        assert part["speed_ratio"]["median"] == pytest.approx(18 / 24)

    def test_the_oracle_of_the_same_k(self) -> None:
        """The other one is faster, but decodes with other drafts."""
        speed = {"cost-aware k 4": 9.0, "oracle k 4": 12.0, "oracle k 8": 18.0}
        runs = [
            make_run(name, block_size=int(name[-1]), tokens_per_second=value)
            for name, value in speed.items()
        ]
        (group,) = summarize(runs, [])
        (part,) = compare(group)["cost_aware_as_part_of_oracle"]
        assert part["over"] == "oracle k 4"
        assert part["speed_ratio"]["median"] == pytest.approx(0.75)

    def test_plain_ar_may_be_the_best_rival(self) -> None:
        found = compare(speeds(AR=30, constant_k_2=12, cost__aware_k_4=18, acceptance__head=99))
        (simple,) = found["cost_aware_over_best_simple"]
        assert simple["over"] == "AR"

    def test_everything_over_ar(self) -> None:
        found = compare(speeds(AR=10, drafter=90, constant_k_2=12, oracle_k_4=24))
        ratios = {one["system"]: one["speed_ratio"]["median"] for one in found["each_over_AR"]}
        assert ratios == {"constant k 2": pytest.approx(1.2), "oracle k 4": pytest.approx(2.4)}

    def test_trees_are_rivals_of_their_own(self) -> None:
        found = compare(speeds(AR=10, constant_k_2=12, tree_8=24, tree_9=20, cost__aware_k_4=18))
        (simple,), (tree,) = (found[f"cost_aware_over_best_{name}"] for name in ("simple", "tree"))
        assert (simple["over"], simple["speed_ratio"]["median"]) == ("constant k 2", 1.5)
        assert (tree["over"], tree["speed_ratio"]["median"]) == ("tree 8", 0.75)

    def test_what_is_not_there(self) -> None:
        found = compare(speeds(AR=10, cost__aware_k_4=5))
        assert found["best_controller_over_best_constant"] is None
        assert found["cost_aware_as_part_of_oracle"] == [None]
        assert found["acceptance_head_against_constant"] == []
