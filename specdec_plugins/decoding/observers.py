"""What is told of every step, and decides nothing. No fairseq in here."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from specdec_plugins.decoding.acceptance import AcceptanceRule, Verification
from specdec_plugins.decoding.drafts import Draft
from specdec_plugins.decoding.hypothesis import Hypothesis
from specdec_plugins.decoding.step_result import StepResult


@dataclass(frozen=True)
class Judge:
    """Who judged a draft; nothing is worked out unless an observer asks."""

    rule: AcceptanceRule
    verification: Verification
    predicted: Tensor | None
    """``(rows, slots)`` how likely each drafted token is to be accepted if those before it are, as
    an acceptance head said; None where none was asked."""

    def probabilities(self, verified: Draft) -> Tensor:
        """``(rows, slots)`` how probable the verified tokens are to the verifier, as the acceptance
        rule judges them."""
        return self.rule.probabilities_of(self.verification, verified.tokens, verified.after)


class Observer:
    """Is called after every step; this one takes note of nothing."""

    asks_chances = False
    """Whether it looks at drafts, which are to come with the drafter's probability of each
    token."""

    def begin(self, forced: list[int]) -> None:
        """A batch begins; ``forced``: how many tokens of each row's target are."""

    def __call__(self, draft: Draft, verified: Draft, result: StepResult, judge: Judge) -> None:
        """A step has committed its tokens.

        Args:
            verified: the part of the draft that was.
        """
        self.note(result)

    def note(self, result: StepResult) -> None:
        """What is to be told to those who look at nothing else."""

    def end(self, hypotheses: list[list[Hypothesis]]) -> None:
        """All rows are finished; each has one hypothesis, to which something may be added."""
