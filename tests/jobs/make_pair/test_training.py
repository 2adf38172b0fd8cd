"""The length of a training, and its log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import pair_job

from specdec_plugins.files.errors import InferenceError
from specdec_plugins.jobs.make_pair import training
from specdec_plugins.jobs.make_pair.stages import time_to_train, updates_in
from specdec_plugins.jobs.make_pair.training import LAST, read_log, watch

AT = "2026-11-25 10:{:02d}:{:02d} | INFO | {} | {}\n"


def test_a_log_of_a_training_that_was_killed(tmp_path: Path) -> None:
    """Half a second an update, without validations, and the time before the second start."""
    valid = '{"valid_acceptance_length": "1.5", "valid_num_updates": "20"}'
    inner = '{{"epoch": 1, "num_updates": "{}"}}'.format
    lines = [
        (0, 0, "train_inner", inner(10)),
        (0, 5, "train_inner", inner(20)),
        (0, 9, "valid", valid),
        (0, 40, "train_inner", inner(30)),
        (0, 50, "train_inner", '{"num_upda'),
    ]
    text = "".join(AT.format(*line) for line in lines) + "$ specdec-train\nno line of a log\n"
    again = [(30, 0, "train_inner", inner(30)), (30, 5, "train_inner", inner(40))]
    (tmp_path / "log").write_text(text + "".join(AT.format(*line) for line in again), "utf-8")
    assert read_log(tmp_path / "log") == ({20: 1.5}, 0.5)
    assert updates_in(3000.0, 0.5) == 5400


def test_hours_that_are_spent_are_refused(tmp_path: Path) -> None:
    job = pair_job(tmp_path)
    assert time_to_train(job, 0.0) == 3600 - 180
    with pytest.raises(InferenceError, match="--hours 1: "):
        time_to_train(job, 3500.0)


def test_the_length_of_a_checkpoint_training(trained: Any, tmp_path: Path) -> None:
    state = torch.load(trained.drafter, weights_only=False)
    updates, seconds = training.trained(trained.drafter)
    assert updates == state["optimizer_history"][-1]["num_updates"] > 0
    assert seconds == state["extra_state"]["previous_training_time"] > 0
    assert training.trained(tmp_path / LAST) == (0, 0.0)


def test_a_training_that_fails_is_told_by_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(InferenceError, match=r"give a folder of binarised text.*is in .*log"):
        watch(pair_job(tmp_path), ["specdec-train"], tmp_path / "log")
