"""How likely drafted tokens are to be accepted: by experience, or by the drafter's own word."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.decoding.arrays import Floats
from specdec_plugins.decoding.step_result import StepResult


class RunningRates:
    """Rates of several things that happen or not, in which old cases lose their weight."""

    WINDOW = 1000.0
    """Cases of a thing after which an old one has lost most of its weight."""

    def __init__(self, rates: Floats, weight: float) -> None:
        """Before anything is known: these ``rates``, as if seen ``weight`` times."""
        self._seen = np.full(len(rates), weight)
        self._happened = rates * self._seen

    @property
    def rates(self) -> Floats:
        """How often each thing happened, of the times it could have."""
        return self._happened / self._seen

    def note(self, happened: Floats, seen: Floats) -> None:
        """More cases of each thing: how many there were, and in how many it happened."""
        weight = self.WINDOW / (self.WINDOW + seen)
        self._happened = weight * self._happened + happened
        self._seen = weight * self._seen + seen


class SlotAverages:
    """Running averages of how often each slot of a chain is accepted where all before it are."""

    PRIOR = (0.8, 4.0)
    """Before anything is known: this acceptance rate, as if seen so many times."""

    def __init__(self, most: int) -> None:
        rate, weight = self.PRIOR
        self._rates = RunningRates(np.full(most, rate), weight)
        self._clear()

    def _clear(self) -> None:
        most = len(self._rates.rates)
        # By slots that were accepted: steps that went no further, and those of a rejection.
        self._accepted, self._rejected = np.zeros(most + 1), np.zeros(most + 1)

    def note(self, result: StepResult) -> None:
        """A step has been made."""
        parts = zip(result.accepted, result.ended, result.rejected)
        for accepted, ended, rejected in parts:
            # An accepted EOS gains nothing: without it, it would be the bonus token. So it counts
            # as rejected, with all slots after it.
            self._accepted[accepted - ended] += 1
            self._rejected[accepted - ended] += rejected or ended

    def learn(self) -> None:
        """Move the steps noted last into the averages."""
        # A slot was accepted in the steps that accepted more slots than come before it.
        accepted = self._accepted[::-1].cumsum()[::-1][1:]
        self._rates.note(accepted, accepted + self._rejected[:-1])
        self._clear()

    def survival(self) -> Floats:
        """``(slots,)`` how probably each slot, and all before it, are accepted."""
        return self._rates.rates.cumprod()


class NodeAverages:
    """Running averages of how often nodes of new trees are accepted, the most probable first."""

    def __init__(self, most: int) -> None:
        rate, weight = SlotAverages.PRIOR
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


class CalibratedConfidence:
    """In place of an acceptance head: the drafter's probabilities, corrected by what happened.

    How probable a token is to the drafter is not how probable it is to be accepted. Slots are told
    apart in bins by the former; a bin's running average says how many of its judged slots were
    accepted. To begin with that is the bin's middle.
    """

    BINS = 10
    WEIGHT = 4.0
    """Slots that a bin is taken to have seen before."""

    def __init__(self) -> None:
        self._rates = RunningRates((np.arange(self.BINS) + 0.5) / self.BINS, self.WEIGHT)
        self._bins: list[list[int]] = []

    def __call__(self, states: Tensor, confidences: Tensor) -> Tensor:
        """``(rows, slots)`` as of an acceptance head; ``states`` are not looked at."""
        bins = (confidences * self.BINS).long().clamp(max=self.BINS - 1)
        self._bins = bins.tolist()
        rates = torch.from_numpy(self._rates.rates).to(confidences)
        return rates[bins]

    def learn(self, result: StepResult) -> None:
        """What became of the rows that were asked about last; nothing if none were."""
        seen, accepted = np.zeros(self.BINS), np.zeros(self.BINS)
        for bins, count, rejected in zip(self._bins, result.accepted, result.rejected):
            for place, bin_ in enumerate(bins[: count + rejected]):
                seen[bin_] += 1
                accepted[bin_] += place < count
        self._rates.note(accepted, seen)
        self._bins = []
