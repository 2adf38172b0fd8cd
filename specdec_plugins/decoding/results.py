"""The hypotheses of a batch, gathered step by step."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from specdec_plugins.decoding.batch import Batch
from specdec_plugins.decoding.kernels import wait_for
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.decoding.step_result import Hypothesis, Judgement, Observer, StepResult


class Results(Observer):
    """The hypotheses of a batch, complete as its rows finish."""

    def __init__(self, rows: int, limits: GenerationLimits, statistics: DecodingStatistics) -> None:
        """Start the clock."""
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

    def take(self, batch: Batch, result: StepResult) -> None:
        """Take a step's finished rows out of the batch, which goes on with the others."""
        for i, row in enumerate(batch.rows):
            if result.finished[i]:
                end = batch.lengths[i] + 1
                self.finish(row, batch.tokens[i, 1:end], batch.scores[i, 1:end])
        batch.keep(result.kept)

    def finish(self, row: int, tokens: Tensor, scores: Tensor) -> None:
        """Make a row's hypothesis of copies of its tokens and log-probabilities ``(length,)``."""
        accepted, forced = self._accepted[row], self._forced[row]
        parts = [forced, *self._committed[row]] if forced else self._committed[row]
        # As ordinary tensors: fairseq's commands change scores in place.
        with torch.inference_mode(False):
            tokens, scores = tokens.clone(), scores.clone()
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
        wait_for(tokens.device)
        self._statistics.latencies.append(time.perf_counter() - self._start)

    def end(self, hypotheses: list[list[Hypothesis]]) -> None:
        self._statistics.total_seconds += time.perf_counter() - self._start
