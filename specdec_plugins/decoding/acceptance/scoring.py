"""How a verifier's scores are made and judged. No fairseq in here."""

from __future__ import annotations

from dataclasses import dataclass, field

from specdec_plugins.decoding.acceptance.rules import AcceptanceRule, StrictRule
from specdec_plugins.decoding.limits import REPETITION_PENALTY, GenerationLimits


@dataclass(frozen=True)
class Scoring:
    """All that acceptance depends on beside the models: an acceptance head is trained for it."""

    rule: AcceptanceRule = field(default_factory=StrictRule)
    temperature: float = 1.0
    """What scores are divided by."""
    repetition_penalty: float = 1.0
    """See :func:`~specdec_plugins.decoding.limits.penalised`."""

    @classmethod
    def of(cls, rule: AcceptanceRule, limits: GenerationLimits) -> Scoring:
        """With what the limits say of scores."""
        return cls(rule, limits.temperature, limits.repetition_penalty)

    def __str__(self) -> str:
        """The rule, the temperature where that matters to it, and the penalty; neither if it is
        1."""
        scaled = self.rule.takes_temperature and self.temperature != 1
        text = f"{self.rule} at temperature {self.temperature:g}" if scaled else str(self.rule)
        penalty = self.repetition_penalty
        return f"{text} with repetition penalty {penalty:g}" if penalty != 1 else text

    def flags_instead_of(self, other: Scoring) -> str:
        """The flags that ask for it where another is asked for."""
        text = self.rule.flags
        if self.rule.takes_temperature:
            text += f" --temperature {self.temperature:g}"
        if self.repetition_penalty != other.repetition_penalty:
            text += f" {REPETITION_PENALTY.flag} {self.repetition_penalty:g}"
        instead = " instead of --sampling" if other.rule.draws and not self.rule.draws else ""
        return text + instead
