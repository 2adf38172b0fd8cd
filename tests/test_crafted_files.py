"""Files that somebody else may have made: each is taken, or refused in one line."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from models.test_acceptance_head import make_head
from mutations import ODD, mutations, texts
from sweeps import make_run
from test_head_file import DRAFTER, RULE

from specdec_plugins.archive import CheckpointError
from specdec_plugins.decoding.cost_profile import CostProfile, tabulate
from specdec_plugins.decoding.trace import StepTrace
from specdec_plugins.evaluation.folder import SweepFolder, read_runs
from specdec_plugins.evaluation.summary import summarize
from specdec_plugins.head_file import load_head, save_head
from specdec_plugins.inference.settings import InferenceError
from specdec_plugins.inference.trace_file import SentenceTrace, read_trace
from specdec_plugins.inference.trace_report import build_report
from specdec_plugins.models.acceptance_head import fingerprint

COUNT = 200


def outcome(action: Callable[[], Any], *refusals: type[Exception]) -> str | None:
    """The line by which something was refused; None if it was taken. Nothing else may happen."""
    try:
        action()
    except refusals as error:
        return str(error)
    return None


def check(path: Path, contents: list[str], action: Callable[[], Any], *refusals: Any) -> None:
    found = []
    for content in contents:
        path.write_text(content + "\n", "utf-8")
        found.append(outcome(action, *refusals))
    refused = [message for message in found if message is not None]
    assert all("\n" not in message and str(path.parent) in message for message in refused)
    # Else this would show nothing.
    assert len(refused) > COUNT / 4
    assert None in found


def test_runs_of_a_sweep(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"

    def summarized() -> None:
        runs = read_runs(path)
        summarize(runs, [run.system for run in runs])

    good = asdict(make_run())
    check(path, texts(good, COUNT), summarized, InferenceError)


def test_what_a_sweep_was_of(tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").write_text(make_run().to_json() + "\n", "utf-8")
    description = {"text": "0f3a", "settings": {"batch": [1, 2]}}

    def opened() -> None:
        with SweepFolder(tmp_path, description):
            pass

    contents = [*texts(description, COUNT), '{"text": "0f3a", "settings": {"batch": [1, 2]}}']
    check(tmp_path / "sweep.json", contents, opened, InferenceError)


def test_traces(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    steps = [
        StepTrace(["x", "y"], 2, 1, "b", 1.0, None),
        StepTrace(["x", "y", "z"], 3, 2, "b", 1.0, [-1, 0, 1]),
    ]
    good = asdict(SentenceTrace("a source", "an output", steps))

    def reported() -> None:
        build_report(read_trace(str(path)), 10, "trace")

    check(path, texts(good, COUNT), reported, InferenceError)


def test_cost_profiles(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    points = {
        "draft": [[0, 0.0], [1, 0.1], [4, 0.2]],
        "verify": [[0, 0.1], [1, 0.1], [4, 0.2]],
    }
    key = {"threads": 1}

    def tabulated() -> None:
        costs = CostProfile(str(path))._load(path, key)
        for found in costs.values():
            table = tabulate({1: found}, 2, 4, torch.device("cpu"))
            assert bool(torch.isfinite(table.draft).all() and torch.isfinite(table.verify).all())

    check(
        path, texts({"key": key, "costs": {"1": points, "2": points}}, COUNT), tabulated, ValueError
    )


class TestHeads:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "acceptance_head.pt"
        save_head(path, make_head(beta=3, tau=1.0, drafter=fingerprint(DRAFTER)))
        return path

    def load(self, path: Path) -> str | None:
        found = outcome(lambda: load_head(path, DRAFTER, RULE, 4), CheckpointError)
        assert found is None or (found.startswith(f"{path}: ") and "\n" not in found)
        return found

    def test_settings(self, path: Path) -> None:
        good = torch.load(path, weights_only=True)
        assert self.load(path) is None
        refused = 0
        for settings in mutations(good["acceptance_head"], COUNT):
            torch.save({**good, "acceptance_head": settings}, path)
            refused += self.load(path) is not None
        assert refused > COUNT / 2

    def test_weights(self, path: Path) -> None:
        good, numbers = torch.load(path, weights_only=True), random.Random(0)
        values = [*ODD, torch.zeros(3), torch.zeros(1).expand(1 << 20, 1 << 20), "weights"]
        for _ in range(60):
            weights = copy.copy(good["model"])
            weights[numbers.choice([*weights, "unheard of"])] = numbers.choice(values)
            torch.save({**good, "model": weights}, path)
            assert self.load(path) is not None
        for weights in ODD:
            torch.save({**good, "model": weights}, path)
            assert self.load(path) is not None
