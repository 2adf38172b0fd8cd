"""How likely drafted tokens are to be accepted, by experience."""

from __future__ import annotations

import numpy as np

from specdec_plugins.decoding.arrays import Floats
from specdec_plugins.decoding.step_result import StepResult


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


class NodeAverages:
    """Running averages of how often nodes of new trees are accepted, the most probable first."""

    PRIOR = (0.8, 4.0)
    """Before anything is known: a node is accepted as often as this to the power of its place, as
    if seen so many times."""

    def __init__(self, most: int) -> None:
        rate, weight = self.PRIOR
        self._rates = RunningRates(rate ** np.arange(1.0, most + 1), weight)
        self._clear()

    def _clear(self) -> None:
        most = len(self._rates.rates)
        # How often each node was accepted; and trees by how many nodes they had.
        self._accepted, self._sizes = [0] * most, [0] * (most + 1)

    def note(self, result: StepResult) -> None:
        """A step has been made; of trees of what was left of a draft, nothing is learned."""
        parts = zip(result.called, result.nodes, result.ended, result.verified)
        for called, nodes, ended, verified in parts:
            if called:
                self._sizes[verified] += 1
                for node in nodes[: len(nodes) - ended]:
                    self._accepted[node - 1] += 1

    def learn(self) -> None:
        """Move the steps noted last into the averages."""
        seen = np.array(self._sizes)[::-1].cumsum()[::-1][1:]
        self._rates.note(np.array(self._accepted), seen)
        self._clear()

    def survival(self) -> Floats:
        """``(nodes,)`` how probably each node, and so all above it, are accepted."""
        return self._rates.rates
