"""Deciding by what steps cost on this machine."""

from __future__ import annotations

from collections.abc import Iterable

from specdec_plugins.decoding.controllers.base import Controller, Decoder
from specdec_plugins.decoding.controllers.costs import StepCosts
from specdec_plugins.decoding.cost_profile import CostProfile, trial
from specdec_plugins.host.fairseq_types import Sample


class PricedController(Controller):
    """Learns before its first batch, and before each that is larger, what steps cost."""

    def __init__(self, profile: CostProfile | None = None) -> None:
        """``profile``: where costs are kept; None is a file in the cache folder."""
        self._profile = profile or CostProfile()
        self._known = 0

    def prepare(self, decoder: Decoder, sample: Sample) -> None:
        """See the base class.

        Raises:
            ValueError: the user's file of costs is something else, or cannot be written.
        """
        rows = len(sample["net_input"]["src_tokens"])
        if rows > self._known:
            self.learn_costs(self._profile.costs(decoder, sample, self.needs))
            self._known = rows

    def rehearsals(self, lengths: Iterable[int]) -> list[Controller]:
        """Drafts of each of the lengths: which it will choose, it does not know yet."""
        return [trial(length, self.needs) for length in lengths]

    def learn_costs(self, costs: StepCosts) -> None:
        """Know what steps cost, for as many rows as the next batch has, and more."""
        raise NotImplementedError
