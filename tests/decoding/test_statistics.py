"""Counters, and the identities between them."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.decoding.scripted import make_result
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.decoding.statistics import PHASES, DecodingStatistics
from specdec_plugins.decoding.step_result import StepResult

CPU = torch.device("cpu")


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


@given(run=runs())
def test_identities(run: list[StepResult]) -> None:
    statistics = DecodingStatistics()
    for step in run:
        statistics.step(step)
    rows = sum(len(step.rows) for step in run)
    accepted, committed, drafted, verified, called = (
        sum(sum(getattr(step, name)) for step in run)
        for name in ("accepted", "committed", "drafted", "verified", "called")
    )
    assert statistics.steps == rows
    assert statistics.committed_tokens == committed
    assert statistics.accepted_tokens == accepted
    assert statistics.drafted_tokens == drafted
    assert statistics.verified_tokens == verified
    assert statistics.drafter_calls == called
    assert statistics.verifier_calls == sum(len(step.rows) for step in run if step.verifier_called)
    histogram = statistics.acceptance_histogram
    assert sum(histogram) == statistics.steps
    assert sum(m * count for m, count in enumerate(histogram)) == statistics.accepted_tokens
    assert len(histogram) == max((max(step.drafted) + 1 for step in run), default=0)
    if rows:
        assert statistics.acceptance_length == committed / rows
        assert statistics.verification_rate == statistics.verifier_calls / committed
        assert statistics.acceptance_rate == (accepted / verified if verified else 0)
        assert statistics.discard_rate == (drafted - accepted) / committed


def test_report() -> None:
    statistics = DecodingStatistics()
    assert not any(statistics.report()["seconds"].values())
    spent = {"encode": 0.5, "draft": 0.375, "control": 0.125, "verify": 1.0}
    statistics.phase_seconds.update(spent)
    statistics.step(make_result([3, 0], [3, 1], [3, 3]))
    statistics.latencies = [0.5, 0.25]
    statistics.total_seconds = 3.0
    report = statistics.report()
    assert report["acceptance_histogram"] == [1, 0, 0, 1]
    assert report["seconds"] == {**spent, "other": 1.0, "total": 3.0}
    assert report["tokens_per_second"] == pytest.approx(5 / 3)
    assert report["latency_ms"] == {"p50": 250.0, "p90": 500.0, "mean": 375.0}
    assert json.loads(json.dumps(report)) == report


def test_quantiles_are_nearest_ranks() -> None:
    """Of 20 sentences the 10th and the 18th."""
    statistics = DecodingStatistics(latencies=[second / 8 for second in range(20, 0, -1)])
    latency: Any = statistics.report()["latency_ms"]
    assert latency == {"p50": 1250.0, "p90": 2250.0, "mean": 1312.5}


def test_a_clock_adds_up_by_phase() -> None:
    """Not on a GPU, whose host does not wait for the end of a phase."""
    statistics = DecodingStatistics()
    clock, nothing = (statistics.clock(torch.device(name)) for name in ("cpu", "cuda"))
    for _ in range(2):
        with clock.phase("draft"):
            time.sleep(0.01)
        with nothing.phase("verify"):
            pass
    assert {*statistics.phase_seconds} == {"draft"}
    assert "draft" in PHASES
    assert 0.02 <= statistics.phase_seconds["draft"] < 5
