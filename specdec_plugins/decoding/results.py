"""The hypotheses of a batch, gathered step by step."""

from __future__ import annotations

import time

import torch

from specdec_plugins.decoding.batch import Rows
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.decoding.step_result import Hypothesis, Judgement, Observer, StepResult


class Results(Observer):
    """The hypotheses of a batch, complete as its rows finish."""

    def __init__(
        self,
        rows: int,
        limits: GenerationLimits,
        statistics: DecodingStatistics,
        precision: torch.dtype,
    ) -> None:
        """Start the clock; scores have the models' ``precision``, at least float32."""
        self._precision = torch.promote_types(precision, torch.float32)
        self.hypotheses: list[list[Hypothesis]] = [[] for _ in range(rows)]
        self._accepted: list[list[int]] = [[] for _ in range(rows)]
        self._committed: list[list[int]] = [[] for _ in range(rows)]
        self._forced = [0] * rows
        self._limits, self._statistics = limits, statistics
        self._start = time.perf_counter()

    def begin(self, forced: list[int]) -> None:
        self._forced = forced

    def step(self, result: StepResult, judgement: Judgement | None = None) -> None:
        for row, accepted, committed in zip(result.rows, result.accepted, result.committed):
            self._accepted[row].append(accepted)
            self._committed[row].append(committed)

    def take(self, batch: Rows, result: StepResult) -> None:
        """Take a step's finished rows out of the batch, which goes on with the others."""
        for i, row in enumerate(batch.rows):
            if result.finished[i]:
                self._finish(row, batch.tokens[i], batch.scores[i])
        batch.keep(result.kept)

    def _finish(self, row: int, words: list[int], logs: list[float]) -> None:
        """Make a row's hypothesis of its tokens and their log-probabilities."""
        accepted, forced = self._accepted[row], self._forced[row]
        parts = [forced, *self._committed[row]] if forced else self._committed[row]
        # As ordinary tensors: fairseq's commands change scores in place.
        with torch.inference_mode(False):
            tokens, scores = torch.tensor(words), torch.tensor(logs, dtype=self._precision)
            score = scores.sum()
            if self._limits.normalize_scores:
                # As a tensor, whose powers may be infinite.
                length = torch.tensor(len(tokens), dtype=torch.float64)
                score = score / float(length**self._limits.lenpen)
            hypothesis: Hypothesis = {
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
        self.hypotheses[row].append(hypothesis)
        self._statistics.sentences += 1
        self._statistics.latencies.append(time.perf_counter() - self._start)

    def end(self, hypotheses: list[list[Hypothesis]]) -> None:
        self._statistics.total_seconds += time.perf_counter() - self._start
