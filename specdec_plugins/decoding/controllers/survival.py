"""How likely drafted tokens are to be accepted, by the drafter's own word."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_plugins.decoding.controllers.base import Outcome


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
