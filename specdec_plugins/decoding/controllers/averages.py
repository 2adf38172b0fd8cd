"""How likely drafted tokens are to be accepted, by experience."""

from __future__ import annotations

import numpy as np

from specdec_plugins.decoding.arrays import Floats


class RunningRates:
    """Rates of several things that happen or not, in which old cases lose their weight."""

    WINDOW = 1000.0
    """Cases of a thing after which an old one has lost most of its weight."""

    def __init__(self, rates: Floats, weight: float) -> None:
        """Begins with these ``rates``, as if seen ``weight`` times."""
        self._seen = np.full(len(rates), weight)
        self._happened = rates * self._seen

    @property
    def rates(self) -> Floats:
        """How often each thing happened, of the times it could have."""
        return self._happened / self._seen

    def note(self, happened: Floats, seen: Floats) -> None:
        """Count more cases of each thing: how many there were, and in how many it happened."""
        weight = self.WINDOW / (self.WINDOW + seen)
        self._happened = weight * self._happened + happened
        self._seen = weight * self._seen + seen
