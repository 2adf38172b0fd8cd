"""The hypotheses of a batch, gathered step by step."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from specdec_plugins.decoding.arrays import wait_for
from specdec_plugins.decoding.hypothesis import Hypothesis
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.observers import Observer
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.decoding.step_result import StepResult


class Results(Observer):
    """What a batch comes to: gathered step by step, handed out as its rows finish."""

    def __init__(self, rows: int, limits: GenerationLimits, statistics: DecodingStatistics) -> None:
        """The clock starts."""
        self.hypotheses: list[list[Hypothesis]] = [[] for _ in range(rows)]
        self._forced = [0] * rows
        self._accepted: list[list[int]] = [[] for _ in range(rows)]
        self._committed: list[list[int]] = [[] for _ in range(rows)]
        self._limits = limits
        self._statistics = statistics
        self._start = time.perf_counter()

    def begin(self, forced: list[int]) -> None:
        self._forced = forced

    def note(self, result: StepResult) -> None:
        for row, accepted, committed in zip(result.rows, result.accepted, result.committed):
            self._accepted[row].append(accepted)
            self._committed[row].append(committed)

    def finish(self, row: int, tokens: Tensor, scores: Tensor) -> None:
        """A row has its EOS: ``tokens`` and ``scores`` are ``(length,)``."""
        steps = self._accepted[row], self._committed[row]
        hypothesis = make_hypothesis(tokens, scores, self._forced[row], *steps, self._limits)
        self.hypotheses[row].append(hypothesis)
        self._statistics.sentences += 1
        # What was launched is not yet done.
        wait_for(tokens.device)
        self._statistics.latencies.append(time.perf_counter() - self._start)

    def end(self, hypotheses: list[list[Hypothesis]]) -> None:
        self._statistics.total_seconds += time.perf_counter() - self._start


def make_hypothesis(
    tokens: Tensor,
    scores: Tensor,
    forced: int,
    accepted: list[int],
    committed: list[int],
    limits: GenerationLimits,
) -> Hypothesis:
    """Return the hypothesis of ``tokens`` ``(length,)``, EOS included, with log-probabilities
    ``scores``.

    The tensors are copied. ``forced`` is how many tokens the target prefix has, ``accepted`` the
    number of drafted tokens that each step committed, ``committed`` that of all.
    """
    parts = [forced, *committed] if forced else committed
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
            "forced": forced,
            "history": [{"tokens": part} for part in torch.split(tokens, parts)],
        }
