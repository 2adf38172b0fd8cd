"""The length of a training, and its log."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.models.trained import Trained
from helpers.runs.jobs import pair_job
from helpers.runs.served import is_alive

from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.output import JsonObject
from specdec_plugins.jobs.make_pair import make, training
from specdec_plugins.jobs.make_pair.job import PairJob
from specdec_plugins.jobs.make_pair.training import LAST, time_to_train, watch


def test_a_training_is_followed_by_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With lines that a kill has damaged, or that other programs wrote, among them."""
    log = tmp_path / "log"
    log.write_bytes(b'{"num_upda\n\xff\n')
    valid = '{"valid_acceptance_length": "1.5", "valid_num_updates": "20"}'
    lines = ['{"num_updates": "10"}', "other", '{"num_updates": "14"}', valid, "the last line"]
    code = f"import time\nfor line in {lines!r}: print(line, flush=True), time.sleep(0.1)\n"
    monkeypatch.setitem(training.PROGRAMS, "trainer", code)
    monkeypatch.setitem(training.PROGRAMS, "failing", f"{code}raise SystemExit(1)")
    seconds = watch(pair_job(tmp_path), ["trainer"], log)
    assert seconds is not None
    assert 0.05 <= seconds < 1
    text = log.read_text("utf-8", "replace")
    assert training.VALIDATION.findall(text) == [("1.5", "20")]
    with pytest.raises(InferenceError, match=r"the last line.*is in .*log"):
        watch(pair_job(tmp_path / "more"), ["failing"], log)


def test_an_interruption_ends_what_a_command_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the other processes of a training on several GPUs."""
    code = (
        "import subprocess, time\n"
        "print(subprocess.Popen(['sleep', '60']).pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    started = list[int]()

    def interrupt(line: str) -> None:
        started.append(int(line))
        raise KeyboardInterrupt

    monkeypatch.setitem(training.PROGRAMS, "starter", code)
    monkeypatch.setattr(training, "UPDATES", SimpleNamespace(search=interrupt))
    with pytest.raises(KeyboardInterrupt):
        watch(pair_job(tmp_path), ["starter"], tmp_path / "log")
    end = time.monotonic() + 20
    while is_alive(started[0]):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_hours_that_are_spent_are_refused(tmp_path: Path) -> None:
    job = pair_job(tmp_path)
    assert time_to_train(job, 0.0) == 3600 - 180
    # The last stages take a quarter of few hours, not all of them.
    short = replace(job, hours=0.05)
    assert time_to_train(short, 30.0) == pytest.approx(180 - 45 - 30)
    with pytest.raises(InferenceError, match="--hours 1: "):
        time_to_train(job, 3500.0)


def test_interrupted_stages_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until a stage is done; done anew, it begins with nothing."""
    job, clock, ends = pair_job(tmp_path), iter(range(0, 1000, 10)), ["stops", "stops", ""]
    for name in ("v.pt", "text"):
        (tmp_path / name).touch()

    def check(job: PairJob, done: Any) -> JsonObject:
        if ends.pop(0):
            raise KeyboardInterrupt
        return {"files": []}

    monkeypatch.setattr(make, "STAGES", (check,))
    monkeypatch.setattr(make.time, "monotonic", lambda: next(clock))
    for seconds in (10, 20):
        with pytest.raises(KeyboardInterrupt):
            make.make(job, "check")
        assert json.loads(job.layout.done.read_bytes())["check"]["seconds"] == seconds
    assert make.make(job, "check")["check"]["seconds"] == 30
    monkeypatch.setattr(make, "digests", lambda *_: {"changed": "file"})
    ends.append("")
    assert make.make(job, "check")["check"]["seconds"] == 10


def test_the_length_of_a_checkpoint_training(trained: Trained, tmp_path: Path) -> None:
    state = torch.load(trained.drafter, weights_only=False)
    updates, seconds = training.trained(trained.drafter)
    assert updates == state["optimizer_history"][-1]["num_updates"] > 0
    assert seconds == state["extra_state"]["previous_training_time"] > 0
    assert training.trained(tmp_path / LAST) == (0, 0.0)
