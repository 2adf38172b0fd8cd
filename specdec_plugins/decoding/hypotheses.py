"""The hypotheses of a batch, made of the results of its steps. No fairseq in here."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from specdec_plugins.decoding.batch import Rows
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.decoding.step_result import Hypothesis, Judgement, Observer, StepResult


class Hypotheses:
    """Consumes the steps of a batch: statistics, observers, and each row's hypothesis."""

    def __init__(
        self,
        limits: GenerationLimits,
        statistics: DecodingStatistics,
        observers: Sequence[Observer],
        precision: torch.dtype,
    ) -> None:
        """Start the clock; scores have the models' ``precision``, at least float32."""
        self._limits = limits
        self._statistics = statistics
        self._observers = (statistics, *observers)
        self._precision = torch.promote_types(precision, torch.float32)
        self._start = time.perf_counter()

    @property
    def may_end_rows(self) -> bool:
        """True if an observer may end rows before EOS does."""
        return any(observer.ends_rows for observer in self._observers)

    def of(
        self,
        batch: Rows,
        forced: list[int],
        steps: Iterable[tuple[StepResult, Judgement | None]],
    ) -> list[list[Hypothesis]]:
        """Return a hypothesis of each row, in the order in which the batch began.

        Args:
            forced: the number of forced tokens of each row, which are committed.
            steps: results of steps, each before its finished rows leave ``batch``.
        """
        hypotheses: list[list[Hypothesis]] = [[] for _ in forced]
        accepted: list[list[int]] = [[] for _ in forced]
        verified: list[list[int]] = [[] for _ in forced]
        parts = [[count] if count else [] for count in forced]
        for observer in self._observers:
            observer.begin(forced)
        for result, judgement in steps:
            for observer in self._observers:
                observer.step(result, judgement)
            for i, row in enumerate(result.rows):
                accepted[row].append(result.accepted[i])
                verified[row].append(result.verified[i])
                parts[row].append(result.committed[i])
                if result.finished[i]:
                    hypothesis: Hypothesis = {
                        **self._hypothesis(batch.tokens[i], batch.scores[i], parts[row]),
                        "accepted": accepted[row],
                        "verified": verified[row],
                        "steps": len(accepted[row]),
                        "forced": forced[row],
                    }
                    hypotheses[row] = [hypothesis]
        for observer in self._observers:
            observer.end(hypotheses)
        self._statistics.total_seconds += time.perf_counter() - self._start
        return hypotheses

    def _hypothesis(self, words: list[int], logs: list[float], parts: list[int]) -> Hypothesis:
        """Return a row's hypothesis of its tokens and their log-probabilities."""
        self._statistics.sentences += 1
        self._statistics.latencies.append(time.perf_counter() - self._start)
        # As ordinary tensors: fairseq's commands change scores in place.
        with torch.inference_mode(False):
            tokens = torch.tensor(words)
            scores = torch.tensor(logs, dtype=self._precision)
            return {
                "tokens": tokens,
                "score": total_score(scores, self._limits),
                "positional_scores": scores,
                "attention": torch.empty(0),
                "alignment": torch.empty(0),
                "history": [{"tokens": part} for part in torch.split(tokens, parts)],
            }


def total_score(scores: Tensor, limits: GenerationLimits) -> Tensor:
    """Return fairseq's score of a hypothesis whose tokens have log-probabilities ``(n,)``."""
    if not limits.normalize_scores:
        return scores.sum()
    # As a tensor, whose powers may be infinite.
    length = torch.tensor(len(scores), dtype=torch.float64)
    return scores.sum() / float(length**limits.lenpen)
