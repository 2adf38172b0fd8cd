"""An output of a line among several."""

from __future__ import annotations

from dataclasses import dataclass, field


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
    #: With ``print_alignment="hard"`` pairs of indices, a source token and the target token that
    #: attends most to it; EOS is not counted. With ``"soft"`` the attention of each target token to
    #: each source token, both with EOS.
    alignment: list[tuple[int, int]] | list[list[float]] = field(default_factory=list)
