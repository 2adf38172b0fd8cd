"""What a generator hands out for a sentence: fairseq's contract, and what its steps committed."""

from __future__ import annotations

from typing import TypedDict

from torch import Tensor

from specdec_plugins.decoding.step_result import StepTrace


class Hypothesis(TypedDict, total=False):
    """What fairseq has of a sentence, and what our generators add to it."""

    tokens: Tensor
    """``(length,)``, EOS included."""
    score: Tensor
    positional_scores: Tensor
    attention: Tensor
    alignment: Tensor
    steps: int
    accepted: list[int]
    """How many drafted tokens each step committed."""
    forced: int
    """How many of its tokens, the first ones, the target prefix forced."""
    history: list[dict[str, Tensor]]
    """What was forced, if anything, and the tokens that each step committed, as fairseq's
    ``--retain-iter-history`` prints them."""
    trace: list[StepTrace]
    """The steps, where they are recorded."""
