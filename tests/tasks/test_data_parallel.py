"""Two processes train together as one process with twice the update frequency does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.models.dummy_data import COMMON, SIZES, run_train
from helpers.models.trained import Trained

from specdec_plugins.checkpoints.loading import load_state
from specdec_plugins.host.checkpoints import without_copies

PACKAGE = Path(__file__).resolve().parent.parent.parent / "specdec_plugins"
# No dropout, whose masks depend on how sentences are batched. Adam divides a gradient by its size:
# with its usual epsilon, the rounding errors of a gradient that is all but 0 would be steps too.
FLAGS = (
    f"--task translation_specdec --arch block_causal --block-size 4 --criterion glat_loss {SIZES} "
    "--dropout 0 --share-verifier-encoder --verifier-features --verifier-embed-dim 16 "
    "--previous-token-head --verifier-labels --blocks-per-sentence 3 --slot-decay 3 "
    "--adam-eps 1e-3 --max-tokens 30 --max-update 6 --save-interval-updates 1"
)
TOGETHER = (
    "--distributed-world-size 2 --distributed-rank $RANK --distributed-init-method env:// "
    "--distributed-no-spawn --distributed-backend gloo --ddp-backend legacy_ddp"
)


def run_two(flags: str) -> list[dict[str, Any]]:
    """Train by the README's command; return the logs of validation."""
    train = f"exec {sys.executable} -m fairseq_cli.train {flags} {TOGETHER}"
    launcher = "-m torch.distributed.run --standalone --nproc-per-node 2 --no-python"
    command = [sys.executable, *launcher.split(), "bash", "-c", train]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    output = done.stdout + done.stderr
    assert "training on 2 devices" in output
    lines = [line.split(" | ")[-1] for line in output.splitlines() if "valid_loss" in line]
    return [json.loads(line) for line in lines if line.startswith("{")]


def mean_loss(state: dict[str, Any]) -> float:
    """The training loss in bits, over the epoch so far, as fairseq saves it: not rounded."""
    meters = {name: meter for _, name, _, meter in state["extra_state"]["metrics"]["train"]}
    return float(meters["loss"]["sum"] / meters["loss"]["count"])


def check_two_are_one(data: Path, folder: Path, flags: str, *figures: str) -> None:
    one, two = folder / "one", folder / "two"
    logs = run_train(data, one, f"{flags} --update-freq 2").of("valid")
    flags = f"{data} --save-dir {two} {COMMON} {flags} --user-dir {PACKAGE}"
    other = run_two(flags)
    names = sorted(path.name for path in one.glob("checkpoint_[0-9]*.pt"))
    assert len(names) >= 6
    assert names == sorted(path.name for path in two.glob("checkpoint_[0-9]*.pt"))
    for name in names:
        first, second = load_state(one / name), load_state(two / name)
        assert mean_loss(first) == pytest.approx(mean_loss(second), abs=1e-5)
        assert first["model"].keys() == second["model"].keys()
        for key, tensor in without_copies(first["model"]).items():
            if isinstance(tensor, torch.Tensor):
                torch.testing.assert_close(second["model"][key], tensor, atol=1e-5, rtol=0)
    assert len(other) == len(logs)
    for mine, theirs in zip(logs, other):
        for key in figures:
            assert float(theirs[key]) == pytest.approx(mine[key], abs=1.01e-3), key


@pytest.mark.slow
def test_a_drafter(trained: Trained, tmp_path: Path) -> None:
    flags = f"{FLAGS} --AR-path {trained.verifier}"
    figures = ("valid_loss", "valid_acc_0", "valid_acceptance_length")
    check_two_are_one(trained.data, tmp_path, flags, *figures)


@pytest.mark.slow
def test_an_acceptance_head(trained: Trained, tmp_path: Path) -> None:
    """Its labels, too, which are drawn here for the update and for each batch of sentences."""
    flags = (
        f"--task translation_specdec --arch acceptance_head --head-layers 1 --sampling "
        f"--drafter {trained.drafter} --AR-path {trained.verifier} "
        "--criterion acceptance_loss --blocks-per-sentence 3 --adam-eps 1e-3 --max-tokens 30 "
        "--max-update 6 --save-interval-updates 1"
    )
    check_two_are_one(trained.data, tmp_path, flags, "valid_loss", "valid_acceptance_rate")
