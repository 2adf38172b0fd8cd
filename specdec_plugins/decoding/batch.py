"""The rows that are being decoded, and their hypotheses. No fairseq in here."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.decoding import kernels
from specdec_plugins.decoding.acceptance import Accepted
from specdec_plugins.decoding.drafts import Draft
from specdec_plugins.decoding.kernels import Floating, Ints
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.decoding.step_result import Hypothesis, Judgement, Observer, StepResult
from specdec_plugins.decoding.target_prefix import TargetPrefix
from specdec_plugins.host.fairseq_types import EncoderOut, NetInput
from specdec_plugins.models.rows import keep_rows


class Rows:
    """The unfinished rows of a batch, on the host."""

    def __init__(self, max_lengths: list[int]) -> None:
        """``max_lengths``: the largest number of tokens of each row before EOS."""
        self.rows = list(range(len(max_lengths)))
        """The index of each row in the batch as it began."""
        self.max_lengths = max_lengths
        self.tokens: list[list[int]] = [[] for _ in self.rows]
        """Committed tokens, forced ones included."""
        self.scores: list[list[float]] = [[] for _ in self.rows]
        """Their log-probabilities."""
        self.lengths = [0] * len(self.rows)
        """The number of them."""

    def append(
        self,
        accepted: Accepted,
        scores: list[list[float]],
        drafted: list[int],
        called: list[bool],
        verifier_called: bool = True,
    ) -> StepResult:
        """Append what was accepted to every row, with the tokens' log-probabilities ``scores``."""
        rows = zip(self.tokens, self.scores, accepted.committed, accepted.tokens.tolist(), scores)
        for tokens, logs, count, new, log in rows:
            tokens += new[:count]
            logs += log[:count]
        self.lengths = [len(tokens) for tokens in self.tokens]
        return StepResult(
            **vars(accepted),
            rows=self.rows,
            drafted=drafted,
            called=called,
            lengths=self.lengths,
            limited=[length > limit for length, limit in zip(self.lengths, self.max_lengths)],
            verifier_called=verifier_called,
        )

    def keep(self, rows: list[int]) -> None:
        """Go on with ``rows`` only, in this order."""
        for name, values in vars(self).items():
            if isinstance(values, list):
                setattr(self, name, [values[i] for i in rows])


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


class RowCounts(NamedTuple):
    """The counts of a batch on the device, each ``(rows,)``."""

    lengths: Tensor
    max_lengths: Tensor
    draft_lengths: Tensor


class Batch(Rows):
    """The rows of :class:`SpeculativeGenerator`'s loop, with data on the models' device."""

    def __init__(
        self,
        net_input: NetInput,
        encoder_out: EncoderOut | None,
        prefix: TargetPrefix,
        max_lengths: list[int],
        longest_draft: int,
    ) -> None:
        """
        Args:
            encoder_out: the verifier's, if its encoder was run.
            prefix: forced tokens, which are not committed yet.
            longest_draft: in slots or nodes.
        """
        super().__init__(max_lengths)
        self.net_input, self.encoder_out = net_input, encoder_out
        self.device = net_input["src_tokens"].device
        # A row's last step may start at its maximum length and write a whole draft after it.
        self.capacity = max(max_lengths) + 2 * (longest_draft + 1)
        """Tokens that a row has room for."""
        self.free_from = prefix.free_from
        """Positions before this one have no minimum length: some row's prefix holds them."""
        self.last = prefix.begins
        """The last of the tokens, or the token before the first one: EOS by default."""
        self.features: Tensor | None = None
        """``(rows, capacity, channels)`` the verifier's states for the committed tokens, from
        index 0, for a drafter that reads them; None before the first step."""
        self.uncached = [0] * len(self.rows)
        """Tokens committed since the last pass of a causal drafter, which has not cached them."""
        self.draft_lengths = [0] * len(self.rows)
        """Draft lengths of the next step."""
        self._on_device: RowCounts | None = None

    @property
    def on_device(self) -> RowCounts:
        """The counts on the device, copied at the first use after a change."""
        if self._on_device is None:
            counts = [self.lengths, self.max_lengths, self.draft_lengths]
            self._on_device = RowCounts(*kernels.to_device(counts, self.device).unbind())
        return self._on_device

    def room(self, slots: int) -> list[int] | None:
        """Return the tokens that each row may still have before EOS; None if all have room for
        ``slots``."""
        room = [limit - length for limit, length in zip(self.max_lengths, self.lengths)]
        return room if min(room) < slots else None

    def commit(
        self,
        draft: Draft,
        accepted: Accepted,
        scores: Tensor,
        states: Tensor | None,
        verifier_called: bool = True,
    ) -> StepResult:
        """Append what was accepted of a draft.

        Args:
            scores: ``(rows, n)`` log-probabilities of ``accepted.tokens``.
            states: ``(rows, slots, channels)`` the verifier's, for a drafter that reads them.
        """
        if states is not None:
            self._append_features(states, accepted)
        called = draft.called
        before = zip(called, self.uncached, accepted.committed)
        self.uncached = [n if cached else m + n for cached, m, n in before]
        self.last, self._on_device = accepted.last, None
        return self.append(accepted, scores.tolist(), draft.drafted, called, verifier_called)

    def _append_features(self, states: Tensor, accepted: Accepted) -> None:
        counts, sources = accepted.committed, accepted.sources
        if self.features is None:
            shape = len(self.rows), self.capacity, states.size(-1)
            self.features = states.new_empty(shape)
        # Compiled code does not look where it writes.
        assert max(map(int.__add__, self.lengths, counts)) <= self.capacity
        if kernels.is_host(self.device):
            features, new = kernels.numbers(self.features), kernels.numbers(states.contiguous())
            bounds = np.array((self.lengths, counts))
            _copy(features, new, bounds, kernels.on_host(sources))
            return
        # Rows of fewer tokens copy more behind them, which nobody reads.
        slots = kernels.indices(max(counts), self.device)
        row = kernels.indices(len(counts), self.device)[:, None]
        positions = self.on_device.lengths[:, None] + slots
        self.features[row, positions] = states[row, sources[:, : max(counts)]]

    def plan(self, draft_lengths: list[int]) -> None:
        """Set the draft lengths of the next step."""
        if draft_lengths != self.draft_lengths:
            self.draft_lengths, self._on_device = draft_lengths, None

    def keep(self, rows: list[int]) -> None:
        super().keep(rows)
        if self.features is not None:
            self.features = keep_rows(self.features, rows)
        self._on_device = None


@kernels.compiled
def _copy(target: Floating, new: Floating, bounds: Ints, sources: Ints) -> None:
    """Copy rows ``sources`` ``(rows, n)`` of ``new``; ``bounds``: ``(2, rows)`` lengths, counts."""
    for row in range(bounds.shape[1]):
        for n in range(bounds[1, row]):
            target[row, bounds[0, row] + n] = new[row, sources[row, n]]
