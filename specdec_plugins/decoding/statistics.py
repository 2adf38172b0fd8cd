"""Counters of a decoding run, and their report. No fairseq in here."""

from __future__ import annotations

import time
from array import array
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch

from specdec_plugins.decoding.kernels import wait_for
from specdec_plugins.decoding.step_result import Judgement, Observer, StepResult
from specdec_plugins.files.errors import counted

PHASES = ("encode", "draft", "control", "verify")
"""Parts of a run's time; the rest is reported as "other"."""
COUNTS = (
    *("committed_tokens", "steps", "drafted_tokens", "verified_tokens", "accepted_tokens"),
    *("verifier_calls", "drafter_calls"),
)
RATES = ("acceptance_length", "acceptance_rate", "verification_rate", "discard_rate")
"""Derived from the counts."""


class Stopwatch:
    """Seconds per phase, by the host's clock.

    A GPU's phases are measured only if the stopwatch ``waits`` for the device at both ends of each,
    which slows the run down.
    """

    def __init__(self, waits: bool = False) -> None:
        self._waits = waits
        self._seconds: dict[str, float] = {}

    def __call__(self, phase: str, device: torch.device) -> AbstractContextManager[None]:
        if device.type == "cuda" and not self._waits:
            return UNMEASURED
        return _Measurement(self._seconds, phase, device)

    def seconds(self) -> dict[str, float]:
        """Return the seconds of every phase so far."""
        return dict(self._seconds)


UNMEASURED = nullcontext()


class _Measurement:
    """A context manager as a class: a generator would take twice as long."""

    def __init__(self, seconds: dict[str, float], phase: str, device: torch.device) -> None:
        self._seconds, self._phase, self._device = seconds, phase, device

    def __enter__(self) -> None:
        wait_for(self._device)
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        wait_for(self._device)
        elapsed = time.perf_counter() - self._start
        self._seconds[self._phase] = self._seconds.get(self._phase, 0.0) + elapsed


@dataclass
class DecodingStatistics(Observer):
    """What a run did. Every count is over rows: a batched step of 8 rows is 8 steps.

    EOS is a token like any other: it is drafted, accepted and committed.
    """

    sentences: int = 0
    """Sentences finished."""
    committed_tokens: int = 0
    """Tokens put out, EOS included: accepted tokens and bonus tokens, but not forced ones."""
    forced_tokens: int = 0
    """Tokens of target prefixes, which nobody decided on."""
    steps: int = 0
    """Draft, verify, commit."""
    drafted_tokens: int = 0
    """Slots drafted: the sum of draft lengths, those of left-over drafts included."""
    verified_tokens: int = 0
    """Drafted tokens that were sent to the verifier: the sum of verify lengths."""
    accepted_tokens: int = 0
    """Drafted tokens that were committed; not an EOS that the length limit forces."""
    verifier_calls: int = 0
    """Verifier passes, one over what is forced among them."""
    drafter_calls: int = 0
    """Drafter passes: fewer where steps draft nothing, or what was left of the draft before."""
    acceptance_histogram: list[int] = field(default_factory=list)
    """How many steps committed 0, 1, 2, … drafted tokens."""
    latencies: array[float] = field(default_factory=lambda: array("d"))
    """Seconds from the start of a sentence's batch until the sentence was finished."""
    total_seconds: float = 0.0
    """Wall seconds of decoding, without what is prepared before a batch."""
    stopwatch: Stopwatch = field(default_factory=Stopwatch)

    def begin(self, forced: list[int]) -> None:
        self.forced_tokens += sum(forced)

    def step(self, result: StepResult, judgement: Judgement | None = None) -> None:
        """Count a step of every row."""
        self.steps += len(result.rows)
        self.drafter_calls += sum(result.called)
        self.verifier_calls += result.verifier_called * len(result.rows)
        self.drafted_tokens += sum(result.drafted)
        self.verified_tokens += sum(result.verified)
        self.accepted_tokens += sum(result.accepted)
        self.committed_tokens += sum(result.committed)
        missing = max(result.drafted) + 1 - len(self.acceptance_histogram)
        self.acceptance_histogram.extend([0] * missing)
        for count in result.accepted:
            self.acceptance_histogram[count] += 1

    def __str__(self) -> str:
        taken = f"{counted(self.sentences, 'sentence')} in {self.total_seconds:.1f} s"
        return f"{taken}, {self.acceptance_length:.1f} tokens a step"

    @property
    def bonus_tokens(self) -> int:
        """Committed tokens that are the verifier's own."""
        return self.committed_tokens - self.accepted_tokens

    @property
    def acceptance_length(self) -> float:
        """Committed tokens a step, bonus token included."""
        return self.committed_tokens / max(self.steps, 1)

    @property
    def acceptance_rate(self) -> float:
        """Accepted per verified drafted token; 0 where none was verified."""
        return self.accepted_tokens / self.verified_tokens if self.verified_tokens else 0.0

    @property
    def verification_rate(self) -> float:
        """Verifier calls per committed token."""
        return self.verifier_calls / max(self.committed_tokens, 1)

    @property
    def discard_rate(self) -> float:
        """Rejected drafted tokens per committed token."""
        return (self.drafted_tokens - self.accepted_tokens) / max(self.committed_tokens, 1)

    @property
    def tokens_per_second(self) -> float:
        """Committed tokens per wall second of decoding."""
        return self.committed_tokens / self.total_seconds if self.total_seconds else 0.0

    def report(self) -> dict[str, object]:
        """Everything, under the names that the documentation uses."""
        seconds = self.stopwatch.seconds()
        phases = {phase: seconds.get(phase, 0.0) for phase in PHASES}
        phases["other"] = max(0.0, self.total_seconds - sum(phases.values()))
        phases["total"] = self.total_seconds
        first = ("sentences", "committed_tokens", "forced_tokens")
        names = (*first, *COUNTS, *RATES, "acceptance_histogram")
        return {
            **{name: getattr(self, name) for name in names},
            "seconds": phases,
            "tokens_per_second": self.tokens_per_second,
            "latency_ms": {
                "p50": 1000 * self._latency_quantile(0.5),
                "p90": 1000 * self._latency_quantile(0.9),
                "mean": 1000 * sum(self.latencies) / max(len(self.latencies), 1),
            },
        }

    def _latency_quantile(self, part: float) -> float:
        """Nearest-rank quantile in seconds; 0 of nothing."""
        if not self.latencies:
            return 0.0
        return float(np.quantile(self.latencies, part, method="inverted_cdf"))
