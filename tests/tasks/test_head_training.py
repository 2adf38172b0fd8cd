"""Training of an acceptance head, by fairseq's command, for every rule."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from helpers.models.dummy_data import Logs, run_train
from helpers.models.trained import Trained

from specdec_plugins.checkpoints.head_file import load_head
from specdec_plugins.checkpoints.loading import load_state
from specdec_plugins.cli import calibrate_head
from specdec_plugins.decoding.acceptance import SamplingRule, Scoring
from specdec_plugins.evaluation.calibration import TrainedHead
from specdec_plugins.files.errors import CheckpointError


def test_the_loss_falls_and_only_the_head_is_saved(trained: Trained) -> None:
    valid = Logs.load(trained.head.parent).of("valid")
    assert valid[-1]["valid_loss"] < valid[0]["valid_loss"]
    assert 0 < valid[-1]["valid_acceptance_rate"] < 1
    assert all(name.startswith("head.") for name in load_state(trained.head)["model"])


def test_training_resumes_for_the_same_rule_alone(trained: Trained, tmp_path: Path) -> None:
    save = tmp_path / "head"
    shutil.copytree(trained.head.parent, save)
    logs = run_train(trained.data, save, f"{trained.head_flags} {trained.rule} --max-epoch 7")
    assert len(logs.of("train")) == 1
    before = (save / "checkpoint_last.pt").read_bytes()
    with pytest.raises(Exception, match="Cannot load model parameters"):
        run_train(trained.data, save, f"{trained.head_flags} --max-epoch 9")
    assert (save / "checkpoint_last.pt").read_bytes() == before


def test_a_head_for_sampling(trained: Trained, tmp_path: Path) -> None:
    """It is calibrated with the labels that it was trained with, and used with no others."""
    save, output = tmp_path / "save", tmp_path / "acceptance_head.sampling.pt"
    sampling = "--sampling --sampling-topp 0.8 --temperature 0.7"
    logs = run_train(trained.data, save, f"{trained.head_flags} {sampling} --max-update 3")
    assert 0 < logs.of("valid")[-1]["valid_acceptance_rate"] < 1
    assert calibrate_head.main([str(save / "checkpoint_last.pt"), str(output)]) == 0
    head = TrainedHead(str(save / "checkpoint_last.pt"))
    drafter, rule = head.labeller.drafter.model, SamplingRule(sampling_topp=0.8)
    assert head.labeller.rule == rule
    first, again = head.predict("valid"), head.predict("valid")
    assert torch.equal(first.logits, again.logits)
    assert torch.equal(first.survived, again.survived)
    assert load_head(output, drafter, Scoring(rule, 0.7).values, 4).settings.rule_temperature == 0.7
    with pytest.raises(CheckpointError, match=r"--temperature 0\.7"):
        load_head(output, drafter, Scoring(rule).values, 4)


@pytest.mark.parametrize("flag", ["--drafter=", "--eval-bleu"])
def test_bad_training_flags(trained: Trained, tmp_path: Path, flag: str) -> None:
    with pytest.raises(ValueError, match=flag.rstrip("=")):
        run_train(trained.data, tmp_path, f"{trained.head_flags} {flag}")
