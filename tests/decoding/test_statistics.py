"""Counters, and the identities between them."""

from __future__ import annotations

import json
import math
import time
from array import array
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scripted import make_result

from specdec_plugins.decoding import results
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.statistics import PHASES, DecodingStatistics, Stopwatch
from specdec_plugins.decoding.step_result import StepResult

CPU = torch.device("cpu")
KEYS = [
    "sentences",
    "committed_tokens",
    "forced_tokens",
    "steps",
    "drafted_tokens",
    "verified_tokens",
    "accepted_tokens",
    "verifier_calls",
    "drafter_calls",
    "acceptance_length",
    "acceptance_rate",
    "verification_rate",
    "discard_rate",
    "acceptance_histogram",
    "seconds",
    "tokens_per_second",
    "latency_ms",
]


@st.composite
def runs(draw: st.DrawFn) -> list[StepResult]:
    """Steps of a batch."""
    found = []
    for _ in range(draw(st.integers(0, 6))):
        drafted = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
        verified = [draw(st.integers(0, count)) for count in drafted]
        accepted = [draw(st.integers(0, count)) for count in verified]
        # An accepted EOS ends the row without a bonus token.
        ended = tuple(i for i, count in enumerate(accepted) if count and draw(st.booleans()))
        called = [draw(st.booleans()) for _ in drafted]
        result = make_result(accepted, verified, drafted, ended=ended, called=called)
        found.append(replace(result, verifier_called=draw(st.booleans())))
    return found


def count(statistics: DecodingStatistics, *results: StepResult) -> None:
    for result in results:
        statistics.step(result)


@given(run=runs())
def test_identities(run: list[StepResult]) -> None:
    statistics = DecodingStatistics()
    count(statistics, *run)
    rows = sum(len(step.rows) for step in run)
    accepted, committed, drafted, verified = (
        sum(sum(getattr(step, name)) for step in run)
        for name in ("accepted", "committed", "drafted", "verified")
    )
    assert statistics.steps == rows
    assert statistics.committed_tokens == committed
    assert statistics.accepted_tokens == accepted
    assert statistics.drafted_tokens == drafted
    assert statistics.verified_tokens == verified
    assert statistics.drafter_calls == sum(sum(step.called) for step in run)
    assert statistics.verifier_calls == sum(len(step.rows) for step in run if step.verifier_called)
    assert statistics.accepted_tokens + statistics.bonus_tokens == statistics.committed_tokens
    histogram = statistics.acceptance_histogram
    assert sum(histogram) == statistics.steps
    assert sum(m * count for m, count in enumerate(histogram)) == statistics.accepted_tokens
    assert len(histogram) == max((max(step.drafted) + 1 for step in run), default=0)
    if rows:
        assert statistics.acceptance_length == committed / rows
        assert statistics.verification_rate == statistics.verifier_calls / committed
        assert statistics.acceptance_rate == (accepted / verified if verified else 0)
        assert statistics.discard_rate == (drafted - accepted) / committed


def test_nothing_done_is_all_zero() -> None:
    report = DecodingStatistics().report()
    assert list(report) == KEYS
    assert report["acceptance_histogram"] == []
    assert set(report["seconds"]) == {*PHASES, "other", "total"}
    numbers = [*report["seconds"].values(), *report["latency_ms"].values()]
    numbers += [value for value in report.values() if isinstance(value, (int, float))]
    assert not any(numbers)


def test_report(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = {"encode": 0.5, "draft": 0.375, "control": 0.125, "verify": 1.0}
    stopwatch = Stopwatch()
    monkeypatch.setattr(stopwatch, "seconds", lambda: spent)
    statistics = DecodingStatistics(stopwatch=stopwatch)
    count(
        statistics,
        make_result([3, 0], [3, 1], [3, 3]),
        make_result([1], [2], [3], ended=(0,), called=[False]),
    )
    statistics.sentences = 2
    statistics.latencies = array("d", [0.5, 0.25])
    statistics.total_seconds = 3.0
    report = statistics.report()
    assert list(report) == KEYS
    assert report["sentences"] == 2
    assert report["committed_tokens"] == 6
    assert report["steps"] == report["verifier_calls"] == 3
    assert report["drafter_calls"] == 2
    assert report["drafted_tokens"] == 9
    assert report["verified_tokens"] == 6
    assert report["accepted_tokens"] == 4
    assert report["acceptance_length"] == 2.0
    assert report["acceptance_rate"] == pytest.approx(4 / 6)
    assert report["verification_rate"] == 0.5
    assert report["discard_rate"] == pytest.approx(5 / 6)
    assert report["acceptance_histogram"] == [1, 1, 0, 1]
    assert report["seconds"] == {**spent, "other": 1.0, "total": 3.0}
    assert report["tokens_per_second"] == 2.0
    assert report["latency_ms"] == {"p50": 250.0, "p90": 500.0, "mean": 375.0}
    assert json.loads(json.dumps(report)) == report


@given(latencies=st.lists(st.floats(0, 100), min_size=1, max_size=30))
def test_quantiles_are_nearest_ranks(latencies: list[float]) -> None:
    """The smallest value that at least the part asked for lies at or below."""
    statistics = DecodingStatistics(latencies=array("d", latencies))
    found = statistics.report()["latency_ms"]
    milliseconds = [1000 * latency for latency in latencies]
    for name, part in (("p50", 0.5), ("p90", 0.9)):
        value = found[name]
        assert value in milliseconds
        assert sum(m <= value for m in milliseconds) >= part * len(milliseconds)
        assert sum(m < value for m in milliseconds) < part * len(milliseconds)
    assert found["mean"] == pytest.approx(math.fsum(milliseconds) / len(milliseconds))


def test_a_gpu_is_waited_for_only_by_a_stopwatch_that_waits() -> None:
    stopwatch = Stopwatch()
    with stopwatch("draft", torch.device("cuda")):
        pass
    assert stopwatch.seconds() == {}


def test_one_that_waits_reads_the_clock_on_either_side(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    stopwatch, device = Stopwatch(waits=True), torch.device("cuda", 1)
    with stopwatch("draft", device):
        assert waited == [device]
        time.sleep(0.01)
    assert waited == [device, device]
    assert stopwatch.seconds()["draft"] >= 0.01


def test_a_latency_ends_when_the_device_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "wait_for", lambda device: time.sleep(0.01))
    statistics = DecodingStatistics()
    found = results.Results(1, GenerationLimits(), statistics)
    found.step(make_result([0], [0], [0]))
    found.finish(0, torch.tensor([2]), torch.zeros(1))
    assert sum(statistics.latencies) >= 0.01


def test_stopwatch_adds_up_by_phase() -> None:
    stopwatch = Stopwatch()
    for _ in range(2):
        with stopwatch("draft", CPU):
            time.sleep(0.01)
    with stopwatch("verify", CPU):
        pass
    seconds = stopwatch.seconds()
    assert set(seconds) == {"draft", "verify"}
    assert 0.02 <= seconds["draft"] < 5
    assert 0 <= seconds["verify"] < 0.01 + seconds["draft"]
    seconds["draft"] = 0.0
    assert stopwatch.seconds()["draft"] >= 0.02
