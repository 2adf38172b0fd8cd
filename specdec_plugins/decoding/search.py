"""The choice of output tokens: an acceptance rule, and limits. No fairseq in here."""

from __future__ import annotations

from dataclasses import dataclass, field

from specdec_plugins.decoding.acceptance import AcceptanceRule, Scoring, StrictRule
from specdec_plugins.decoding.limits import GenerationLimits


@dataclass(frozen=True)
class Search:
    """The choices of a generator, which are made when it is built."""

    rule: AcceptanceRule = field(default_factory=StrictRule)
    limits: GenerationLimits = field(default_factory=GenerationLimits)

    @property
    def scoring(self) -> Scoring:
        """All that acceptance depends on beside the models."""
        return Scoring.of(self.rule, self.limits)
