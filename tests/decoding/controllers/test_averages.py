"""What happened to nodes tells how they will fare."""

from __future__ import annotations

import numpy as np
import pytest
from scripted import make_result

from specdec_plugins.decoding.controllers.averages import NodeAverages, RunningRates


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


def learned(rates: list[float], seen: list[float], happened: list[float]) -> np.ndarray:
    """Rates that were believed with the prior's weight, and the cases after them."""
    running = RunningRates(np.array(rates), NodeAverages.PRIOR[1])
    running.note(np.array(happened), np.array(seen))
    return running.rates


def test_averages_of_nodes() -> None:
    """Of new trees only."""
    averages = NodeAverages(5)
    before = NodeAverages.PRIOR[0] ** np.arange(1.0, 6)
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
