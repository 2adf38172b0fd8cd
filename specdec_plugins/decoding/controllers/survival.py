"""How likely drafted tokens are to be accepted: by experience, or by the drafter's own word."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_plugins.decoding.controllers.base import Outcome


class SlotAverages:
    """Running averages of how often each slot is accepted where all before it are."""

    WINDOW = 1000.0
    """Judged slots after which an old one has lost most of its weight."""
    PRIOR = (0.8, 4.0)
    """Before anything is known: this acceptance rate, as if seen so many times."""

    def __init__(self, most: int, device: torch.device) -> None:
        rate, weight = self.PRIOR
        # Steps by accepted slots: those that were not rejected after them, and those that were.
        self._tally = torch.zeros(2, most + 1, device=device)
        self._judged = torch.full((most,), weight, device=device)
        self._accepted = rate * self._judged

    def note(self, outcome: Outcome) -> None:
        """A step has been made."""
        # An accepted EOS gains nothing: without it, it would be the bonus token. So it counts as
        # rejected, with all slots after it.
        accepted = outcome.accepted - outcome.ended.long()
        self._count((outcome.rejected | outcome.ended).long(), accepted)

    def learn(self) -> None:
        """Move the steps noted last into the averages."""
        accepted, judged = self._judge(self._tally)
        weight = self.WINDOW / (self.WINDOW + judged)
        self._accepted = weight * self._accepted + accepted
        self._judged = weight * self._judged + judged
        self._tally = torch.zeros_like(self._tally)

    def survival(self) -> Tensor:
        """``(slots,)`` how probably each slot, and all before it, are accepted."""
        return (self._accepted / self._judged).cumprod(0)

    def _count(self, line: Tensor | int, place: Tensor) -> None:
        """Add one in the tally at each place."""
        index = (line * self._tally.size(1) + place).flatten()
        self._tally.flatten().index_add_(0, index, torch.ones_like(index, dtype=torch.float))

    def _judge(self, tally: Tensor) -> tuple[Tensor, Tensor]:
        """How often each slot was accepted, and judged at all."""
        whole, rejected = tally
        # A slot was accepted in the steps that accepted more slots than come before it.
        accepted = _beyond(whole + rejected)
        return accepted, accepted + rejected[:-1]


class NodeAverages(SlotAverages):
    """Running averages of how often the nodes of trees are accepted, from the most probable on.

    Here the tally holds how often each node was accepted, and how often there were so many.
    """

    def __init__(self, most: int, device: torch.device) -> None:
        super().__init__(most, device)
        self._accepted = self.PRIOR[1] * self.PRIOR[0] ** torch.arange(1.0, most + 1, device=device)

    def note(self, outcome: Outcome) -> None:
        """See the base class."""
        assert outcome.path is not None
        nodes = outcome.path.nodes[:, 1:]
        accepted = (outcome.accepted - outcome.ended.long())[:, None]
        depths = torch.arange(nodes.size(1), device=nodes.device)
        # The last place is for what is not there.
        self._count(0, torch.where(depths < accepted, nodes - 1, -1) % self._tally.size(1))
        self._count(1, outcome.verified)

    def survival(self) -> Tensor:
        """``(nodes,)`` how probably each node, and so all above it, are accepted."""
        return self._accepted / self._judged

    def _judge(self, tally: Tensor) -> tuple[Tensor, Tensor]:
        return tally[0, :-1], _beyond(tally[1])


def _beyond(counts: Tensor) -> Tensor:
    """Of counts at places 0, 1, …: how many are at a place beyond 0, beyond 1, …"""
    return counts.flip(0).cumsum(0).flip(0)[1:]


class CalibratedConfidence:
    """In place of an acceptance head: the drafter's probabilities, corrected by what happened.

    How probable a token is to the drafter is not how probable it is to be accepted. Slots are told
    apart in bins by the former; a bin's running average says how many of its judged slots were
    accepted. To begin with that is the bin's middle.
    """

    BINS = 10
    WEIGHT = 4.0
    """Slots that a bin is taken to have seen before."""
    WINDOW = 1000.0
    """Judged slots of a bin after which an old one has lost most of its weight."""

    def __init__(self) -> None:
        self._judged = torch.full((self.BINS,), self.WEIGHT)
        self._accepted = self._judged * (torch.arange(self.BINS) + 0.5) / self.BINS
        self._bins: Tensor | None = None

    def __call__(self, states: Tensor, probabilities: Tensor) -> Tensor:
        """``(rows, slots)`` as of an acceptance head; ``states`` are not looked at."""
        self._judged = self._judged.to(probabilities.device)
        self._accepted = self._accepted.to(probabilities.device)
        self._bins = (probabilities * self.BINS).long().clamp(max=self.BINS - 1)
        return (self._accepted / self._judged)[self._bins]

    def learn(self, outcome: Outcome) -> None:
        """What became of the rows that were asked about last; nothing if none were."""
        bins, self._bins = self._bins, None
        if bins is None:
            return
        slots = torch.arange(bins.size(1), device=bins.device)
        accepted = slots < outcome.accepted[:, None]
        judged = slots < (outcome.accepted + outcome.rejected.long())[:, None]
        found, good = (
            torch.zeros_like(self._judged).index_add_(0, bins.flatten(), flags.flatten().float())
            for flags in (judged, accepted)
        )
        weight = self.WINDOW / (self.WINDOW + found)
        self._judged = weight * self._judged + found
        self._accepted = weight * self._accepted + good
