"""What a generator hands out for a sentence: fairseq's contract, and what its steps committed."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.statistics import DecodingStatistics


class Results:
    """What a batch comes to: gathered step by step, handed out as its rows finish."""

    def __init__(
        self, rows: int, limits: GenerationLimits, statistics: DecodingStatistics, bonus: int
    ) -> None:
        """The clock starts; ``bonus`` is how many tokens of its own the verifier adds a step."""
        self.hypotheses: list[list[dict[str, Any]]] = [[] for _ in range(rows)]
        self._accepted: list[list[int]] = [[] for _ in range(rows)]
        self._limits = limits
        self._statistics = statistics
        self._bonus = bonus
        self._start = time.perf_counter()

    def step(self, rows: list[int], accepted: list[int]) -> None:
        """A step of these rows committed so many drafted tokens of each."""
        for row, count in zip(rows, accepted):
            self._accepted[row].append(count)

    def finish(self, row: int, tokens: Tensor, scores: Tensor) -> None:
        """A row has its EOS: ``tokens`` and ``scores`` are ``(length,)``."""
        hypothesis = make_hypothesis(tokens, scores, self._accepted[row], self._limits, self._bonus)
        self.hypotheses[row].append(hypothesis)
        self._statistics.sentences += 1
        self._statistics.latencies.append(time.perf_counter() - self._start)

    def end(self) -> list[list[dict[str, Any]]]:
        """All rows are finished."""
        self._statistics.total_seconds += time.perf_counter() - self._start
        return self.hypotheses


def make_hypothesis(
    tokens: Tensor, scores: Tensor, accepted: list[int], limits: GenerationLimits, bonus: int = 1
) -> dict[str, Any]:
    """The hypothesis of ``tokens`` ``(length,)``, EOS included, with log-probabilities ``scores``.

    The tensors are copied. ``accepted`` is the number of drafted tokens that each step committed,
    and ``bonus`` how many the verifier added, but at the end of the sentence. ``history`` is what
    fairseq's ``--retain-iter-history`` prints: the tokens that each step committed.
    """
    committed = [count + bonus for count in accepted]
    committed[-1] = len(tokens) - sum(committed[:-1])
    # As ordinary tensors: fairseq's commands change scores in place.
    with torch.inference_mode(False):
        tokens, scores = tokens.clone(), scores.clone()
        score = scores.sum()
        if limits.normalize_scores:
            # As a tensor, whose powers may be infinite.
            length = torch.tensor(len(tokens), dtype=torch.float64)
            score = score / float(length**limits.lenpen)
        return {
            "tokens": tokens,
            "score": score,
            "positional_scores": scores,
            "attention": torch.empty(0),
            "alignment": torch.empty(0),
            "steps": len(accepted),
            "accepted": accepted,
            "history": [{"tokens": part} for part in torch.split(tokens, committed)],
        }
