"""What an acceptance head saves against constant k, as SpecDec++ compares them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from specdec_plugins.evaluation.summary import Group, SystemSummary
from specdec_plugins.files.output import JsonObject

DISCARD_RATES = ("verified_discard_rate", "discard_rate")


def interpolate(points: Sequence[tuple[float, float]], at: float) -> float | None:
    """Return the height at ``at`` of the line through ``points``; None beyond its ends.

    Args:
        points: pairs of place and height, in any order, no two at the same place.
    """
    if not points:
        return None
    places, heights = zip(*sorted(points))
    found = float(np.interp(at, places, heights, left=math.nan, right=math.nan))
    return None if math.isnan(found) else found


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that no other one beats: with as little of both, and less of one."""
    best: list[tuple[float, float]] = []
    for place, height in sorted(points):
        if not best or height < best[-1][1]:
            best.append((place, height))
    return best


def discards_against_constant(group: Group) -> list[JsonObject]:
    """Return the discard rates of constant k at the verification rate of each system with an
    acceptance head, and how far its own is below.

    SpecDec++ (Huang et al., 2024) compares its controller with constant k in this plane. Between
    two k the rates of ``constant`` are interpolated; a k that verifies and discards no less than
    another one is left out, since nobody would choose it.
    """
    points = [
        (_rate(c, "verification_rate"), _rate(c, DISCARD_RATES[0])) for c in group.of("constant")
    ]
    return [_against(one, frontier(points)) for one in group.of("acceptance-head")]


def _against(one: SystemSummary, curve: Sequence[tuple[float, float]]) -> JsonObject:
    rate = _rate(one, "verification_rate")
    found: JsonObject = {
        "system": one.system.name,
        "k": one.block_size,
        "threshold": one.system.threshold,
        "verification_rate": rate,
        "constant_verification_rates": [curve[0][0], curve[-1][0]] if curve else None,
    }
    for name in DISCARD_RATES:
        own = _rate(one, name)
        # What is constant verifies all that it drafts: both rates are the same.
        theirs = interpolate(curve, rate)
        lower = None if not theirs else 100 * (1 - own / theirs)
        found[name] = {"own": own, "constant": theirs, "reduction_percent": lower}
    return found


def _rate(one: SystemSummary, name: str) -> float:
    rate = one.middle(name)
    assert rate is not None
    return rate
