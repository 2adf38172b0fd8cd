"""The questions that a sweep is to answer, from what its rounds come to and ratios within them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from specdec_plugins.evaluation.summary import Group, SystemSummary, speed_ratio
from specdec_plugins.evaluation.systems import AR, DRAFTER
from specdec_plugins.files.json_object import JsonObject

DISCARD_RATES = ("verified_discard_rate", "discard_rate")
Comparison = JsonObject


def interpolate(points: Sequence[tuple[float, float]], at: float) -> float | None:
    """The height at ``at`` of the line through ``points``; None beyond its ends.

    Args:
        points: pairs of place and height, in any order, no two at the same place.
    """
    if not points:
        return None
    places, heights = zip(*sorted(points))
    found = float(np.interp(at, places, heights, left=math.nan, right=math.nan))
    return None if math.isnan(found) else found


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other one beats: with as little of both, and less of one."""
    best: list[tuple[float, float]] = []
    for place, height in sorted(points):
        if not best or height < best[-1][1]:
            best.append((place, height))
    return best


def compare(group: Group) -> JsonObject:
    """All comparisons of a group; None where a system for one is not there.

    What is called best is so by the median of tokens a second; of several it is the luckiest too.
    The oracle is that of the same k, if there is one.
    """
    cost_aware, oracle = group.of("cost-aware"), group.of("oracle")
    standing = group.of("constant")
    adaptive = [s for s in group.decoders() if s.policy not in (AR, "constant", "oracle")]
    rivals = group.of(AR, "constant", "heuristic", "confidence")
    bounds = {system.first.block_size: system for system in oracle}
    return {
        "acceptance_head_against_constant": [
            discard_against_constant(system, standing) for system in group.of("acceptance-head")
        ],
        "best_controller_over_best_constant": _speed(_fastest(adaptive), _fastest(standing)),
        "cost_aware_over_best_simple": [_speed(s, _fastest(rivals)) for s in cost_aware],
        "cost_aware_over_best_tree": [_speed(s, _fastest(group.of("tree"))) for s in cost_aware],
        "cost_aware_as_part_of_oracle": [
            _speed(s, bounds.get(s.first.block_size, _fastest(oracle))) for s in cost_aware
        ],
        "each_over_AR": [
            _speed(system, group.ar)
            for system in group.systems
            if system.policy not in (AR, DRAFTER)
        ],
    }


def discard_against_constant(
    system: SystemSummary, constants: Sequence[SystemSummary]
) -> Comparison:
    """The discard rates of constant k at a system's verification rate, and how far it is below.

    SpecDec++ (Huang et al., 2024) compares its controller with constant k in this plane. Between
    two k the rates of ``constant`` are interpolated; a k that verifies and discards no less than
    another one is left out, since nobody would choose it.
    """
    rate = system.verification_rate
    curve = frontier([(c.verification_rate, c.verified_discard_rate) for c in constants])
    rates = [place for place, _ in curve]
    found: Comparison = {
        "system": system.name,
        "k": system.first.block_size,
        "threshold": system.first.threshold,
        "verification_rate": rate,
        "constant_verification_rates": [min(rates), max(rates)] if rates else None,
        "outside": not rates or not min(rates) <= rate <= max(rates),
    }
    for name in DISCARD_RATES:
        own = float(getattr(system, name))
        # What is constant verifies all that it drafts: both rates are the same.
        theirs = interpolate(curve, rate)
        lower = None if not theirs else 100 * (1 - own / theirs)
        found[name] = {"own": own, "constant": theirs, "reduction_percent": lower}
    return found


def _fastest(systems: Sequence[SystemSummary]) -> SystemSummary | None:
    return max(systems, key=lambda s: s.tokens_per_second.median, default=None)


def _speed(system: SystemSummary | None, other: SystemSummary | None) -> Comparison | None:
    """How many times as many tokens a second."""
    if system is None or other is None:
        return None
    ratio = speed_ratio(system, other)
    if ratio is None:
        return None
    return {"system": system.name, "over": other.name, "speed_ratio": asdict(ratio)}
