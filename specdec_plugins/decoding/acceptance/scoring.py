"""The making and judging of a verifier's scores. No fairseq in here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from specdec_plugins.decoding.acceptance.rules import AcceptanceRule, StrictRule
from specdec_plugins.decoding.acceptance.sampling import tempered
from specdec_plugins.decoding.limits import GenerationLimits, penalised


@dataclass(frozen=True)
class Scoring:
    """All that acceptance depends on beside the models: an acceptance head is trained for it."""

    rule: AcceptanceRule = field(default_factory=StrictRule)
    temperature: float = 1.0
    repetition_penalty: float = 1.0

    @classmethod
    def of(cls, rule: AcceptanceRule, limits: GenerationLimits) -> Scoring:
        """Return a rule's scoring with the options of ``limits``."""
        return cls(rule, limits.temperature, limits.repetition_penalty)

    @property
    def changes(self) -> bool:
        """True if a verifier's scores are changed before they are judged."""
        return self.repetition_penalty != 1 or self.temperature != 1

    def changed(self, scores: Tensor, *output: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores with penalty and temperature, and their normalisers.

        Args:
            output: arguments of :func:`penalised` from ``committed`` on.
        """
        scores = penalised(scores, self.repetition_penalty, *output)
        scores = tempered(scores, self.temperature)
        return scores, scores.logsumexp(-1)

    def __str__(self) -> str:
        """Return the rule, the temperature where that matters to it, and the penalty; neither if it
        is 1."""
        scaled = self.rule.takes_temperature and self.temperature != 1
        text = f"{self.rule} at temperature {self.temperature:g}" if scaled else str(self.rule)
        penalty = self.repetition_penalty
        return f"{text} with repetition penalty {penalty:g}" if penalty != 1 else text

    @property
    def values(self) -> dict[str, Any]:
        """All values by name, as the settings of an acceptance head have them."""
        return {
            **self.rule.values,
            "rule_temperature": self.temperature if self.rule.takes_temperature else 1.0,
            "repetition_penalty": self.repetition_penalty,
        }
