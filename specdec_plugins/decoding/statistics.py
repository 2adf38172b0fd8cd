"""Counters of a decoding run, and their report. No fairseq in here."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import torch

from specdec_plugins.decoding.step_result import Judgement, Observer, StepResult
from specdec_plugins.files.errors import counted

PHASES = ("encode", "draft", "control", "verify")
#: A run's time that no phase takes.
OTHER = "other"
COUNTS = (
    *("committed_tokens", "steps", "drafted_tokens", "verified_tokens", "accepted_tokens"),
    *("verifier_calls", "drafter_calls"),
)
#: Derived from the counts.
RATES = ("acceptance_length", "acceptance_rate", "verification_rate", "discard_rate")


class Clock:
    """Counts the seconds of phases, on a CPU: a GPU's host does not wait for the end of one."""

    def __init__(self, seconds: dict[str, float], device: torch.device) -> None:
        """``seconds``: of each phase, to add to."""
        self._seconds = seconds
        self._runs = device.type != "cuda"
        self._phase = ""
        self._begin = 0.0

    def phase(self, name: str) -> Clock:
        """Return the context of one of :data:`PHASES`; phases do not overlap."""
        self._phase = name
        return self

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        if self._runs:
            self._seconds[self._phase] += time.perf_counter() - self._begin


@dataclass
class DecodingStatistics(Observer):
    """Counts over all rows: a batched step of 8 rows is 8 steps.

    EOS is a token like any other: it is drafted, accepted and committed.
    """

    sentences: int = 0
    #: Accepted tokens and bonus tokens, EOS included; not forced ones.
    committed_tokens: int = 0
    #: Tokens of target prefixes.
    forced_tokens: int = 0
    steps: int = 0
    #: The sum of draft lengths, those of reused trees included.
    drafted_tokens: int = 0
    #: The sum of verify lengths.
    verified_tokens: int = 0
    #: Drafted tokens that were committed; not an EOS that the length limit forces.
    accepted_tokens: int = 0
    #: Verifier passes, the pass over forced tokens included.
    verifier_calls: int = 0
    #: Drafter passes: steps that draft nothing or reuse a tree have none; a copy has one a token,
    #: and one over the tokens that it writes on from.
    drafter_calls: int = 0
    #: The number of steps that committed 0, 1, 2, … drafted tokens.
    acceptance_histogram: list[int] = field(default_factory=list)
    #: Seconds from the start of a sentence's batch until the sentence was finished.
    latencies: list[float] = field(default_factory=list)
    total_seconds: float = 0.0
    phase_seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def clock(self, device: torch.device) -> Clock:
        """Return a clock of the phases of decoding on a device."""
        return Clock(self.phase_seconds, device)

    def begin(self, forced: list[int]) -> None:
        self.forced_tokens += sum(forced)

    def step(self, result: StepResult, judgement: Judgement | None = None) -> None:
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

    def undrafted(self, sentences: int, tokens: int, forced: int, seconds: float) -> None:
        """Count a batch that was decoded without drafts, a step a token.

        Args:
            tokens: of all sentences, EOS and the ``forced`` ones included.
            seconds: until the last sentence was finished.
        """
        self.total_seconds += seconds
        self.sentences += sentences
        self.latencies.extend([seconds] * sentences)
        self.forced_tokens += forced
        self.committed_tokens += tokens - forced
        self.steps += tokens - forced
        self.verifier_calls += tokens
        self.acceptance_histogram = [self.steps]

    def __str__(self) -> str:
        seconds = self.total_seconds
        sentences = counted(self.sentences, "sentence")
        taken = f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"
        if not self.drafted_tokens:
            return f"{sentences} in {taken}"
        return f"{sentences} in {taken}, {self.acceptance_length:.1f} tokens a step"

    @property
    def acceptance_length(self) -> float:
        """Committed tokens a step, bonus token included."""
        return self.committed_tokens / max(self.steps, 1)

    @property
    def acceptance_rate(self) -> float:
        """Accepted tokens per verified token."""
        return self.accepted_tokens / max(self.verified_tokens, 1)

    @property
    def verification_rate(self) -> float:
        """Verifier calls per committed token."""
        return self.verifier_calls / max(self.committed_tokens, 1)

    @property
    def discard_rate(self) -> float:
        """Rejected drafted tokens per committed token."""
        return (self.drafted_tokens - self.accepted_tokens) / max(self.committed_tokens, 1)

    def parts(self) -> dict[str, float]:
        """Return the seconds of each phase, and of all else."""
        phases = {phase: self.phase_seconds[phase] for phase in PHASES}
        return {**phases, OTHER: max(0.0, self.total_seconds - sum(phases.values()))}

    def report(self) -> dict[str, object]:
        """Return all figures, under the names that the documentation uses."""
        total = self.total_seconds
        latencies = 1000 * np.array(self.latencies or [0.0])
        # Quantiles are nearest ranks.
        median, late = np.quantile(latencies, (0.5, 0.9), method="inverted_cdf").tolist()
        return {
            **{
                name: getattr(self, name)
                for name in ("sentences", "forced_tokens", *COUNTS, *RATES, "acceptance_histogram")
            },
            "seconds": {**self.parts(), "total": total},
            "tokens_per_second": self.committed_tokens / total if total else 0.0,
            "latency_ms": {"p50": median, "p90": late, "mean": float(latencies.mean())},
        }
