"""Counters of a decoding run, and their report. No fairseq in here."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch

from specdec_plugins.decoding.arrays import wait_for
from specdec_plugins.decoding.observers import Observer
from specdec_plugins.decoding.step_result import StepResult

PHASES = ("encode", "draft", "control", "verify")
"""Of a run's time; what is left is reported as "other". On a GPU they are the device's seconds, but
for "control", the controller's answers, which is always the host's: to answer, it launches work and
does not wait for it. The two kinds may overlap."""
COUNTS = (
    *("committed_tokens", "steps", "drafted_tokens", "verified_tokens", "accepted_tokens"),
    *("verifier_calls", "drafter_calls"),
)
RATES = ("acceptance_length", "acceptance_rate", "verification_rate", "discard_rate")
"""What is worked out of the counts."""


class Stopwatch:
    """Seconds per phase, without stalling an accelerator.

    On the CPU it reads the clock. On CUDA it records events, which are read when asked for, or when
    there are many: the seconds are then those that the device spent.
    """

    MOST = 4096
    """Measurements with events that are kept, at most: those of two thousand steps."""

    def __init__(self, waits: bool = False) -> None:
        """``waits``: it waits for a device, too, and reads the clock: seconds of the one clock,
        that others are to be taken from."""
        self._waits = waits
        self._seconds: dict[str, float] = {}
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    def __call__(self, phase: str, device: torch.device) -> AbstractContextManager[None]:
        if device.type == "cuda" and not self._waits:
            return self._on_cuda(phase, device)
        return _OnHost(self._add, phase, device)

    @contextmanager
    def _on_cuda(self, phase: str, device: torch.device) -> Iterator[None]:
        event: Callable[..., torch.cuda.Event] = torch.cuda.Event
        begin, end = event(enable_timing=True), event(enable_timing=True)
        # Of this device, which need not be the current one.
        stream = torch.cuda.current_stream(device)
        begin.record(stream)
        yield
        end.record(stream)
        self._events.append((phase, begin, end))
        if len(self._events) >= self.MOST:
            # The device has long been through the older half: nothing is waited for.
            self._read(self.MOST // 2)

    def _add(self, phase: str, seconds: float) -> None:
        self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds

    def seconds(self) -> dict[str, float]:
        """Seconds of every phase so far; waits for the device."""
        self._read(len(self._events))
        return dict(self._seconds)

    def _read(self, count: int) -> None:
        """Add up the oldest events; waits until the device has been through them."""
        read, self._events = self._events[:count], self._events[count:]
        for phase, begin, end in read:
            end.synchronize()
            self._add(phase, begin.elapsed_time(end) / 1000)


class Durations:
    """Seconds, summed up, and a sample of them for quantiles.

    The sample is all of them, as long as they are few. Each time that it is full, every second one
    goes, and of those that come later one of 2, of 4, of 8 … is kept.
    """

    MOST = 65536
    """Durations that are kept, at most: half a megabyte."""

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0.0
        self._sample = array("d")
        self._every = 1

    def add(self, seconds: float) -> None:
        """Count one more."""
        if self.count % self._every == 0:
            if len(self._sample) == self.MOST:
                self._sample, self._every = self._sample[::2], 2 * self._every
            if self.count % self._every == 0:
                self._sample.append(seconds)
        self.count += 1
        self.sum += seconds

    @property
    def mean(self) -> float:
        """0 of nothing."""
        return self.sum / max(self.count, 1)

    def quantile(self, part: float) -> float:
        """Return the nearest-rank quantile of the sample; 0 of nothing."""
        sample = np.frombuffer(self._sample)
        return float(np.quantile(sample, part, method="inverted_cdf")) if len(sample) else 0.0


class _OnHost:
    """A measurement by the clock: a generator as context manager would take twice as long."""

    def __init__(self, add: Callable[[str, float], None], phase: str, device: torch.device) -> None:
        self._add, self._phase, self._device = add, phase, device

    def __enter__(self) -> None:
        wait_for(self._device)
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        wait_for(self._device)
        self._add(self._phase, time.perf_counter() - self._start)


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
    latencies: Durations = field(default_factory=Durations)
    """Seconds from the start of a sentence's batch until the sentence was finished."""
    total_seconds: float = 0.0
    """Wall seconds of decoding, without what is prepared before a batch."""
    stopwatch: Stopwatch = field(default_factory=Stopwatch)

    def begin(self, forced: list[int]) -> None:
        self.forced_tokens += sum(forced)

    def note(self, result: StepResult) -> None:
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
                "p50": 1000 * self.latencies.quantile(0.5),
                "p90": 1000 * self.latencies.quantile(0.9),
                "mean": 1000 * self.latencies.mean,
            },
        }
