"""An output of a line among several."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hypothesis:
    """An output of a line; beam search has several."""

    text: str
    #: Symbols of the target dictionary, EOS included.
    tokens: list[str]
    #: fairseq's score: the mean log-probability of the tokens, by default; None by CTranslate2.
    score: float | None
    #: The log-probability of each token, EOS included; empty by CTranslate2.
    positional_scores: list[float]
