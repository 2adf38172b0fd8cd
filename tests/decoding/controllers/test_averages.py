"""What happened to nodes tells how they will fare."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_plugins.decoding.controllers.averages import RunningRates


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
