"""An acceptance head from training to use, through the real commands on dummy data."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from dummy_data import SIZES, make_data, run_train, train_verifier

from specdec_plugins.checkpoints.archive import CheckpointError
from specdec_plugins.checkpoints.export import export_checkpoint
from specdec_plugins.checkpoints.head_file import find_head, load_head
from specdec_plugins.checkpoints.loading import load_state
from specdec_plugins.cli import calibrate_head
from specdec_plugins.decoding.acceptance import AcceptanceRule
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.probabilities import Sampling
from specdec_plugins.evaluation.head_predictions import TrainedHead

ROOT = Path(__file__).resolve().parent.parent
DRAFTER = (
    f"--task translation_specdec --arch block_causal --block-size 4 --criterion glat_loss {SIZES} "
    "--share-verifier-encoder --verifier-features --verifier-embed-dim 16 --previous-token-head"
)
RULE = "--beta 3 --tau 2.0"


@dataclass
class Trained:
    data: Path
    verifier: Path
    drafter: Path
    flags: str
    folder: Path
    logs: Any

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("head")
    data = make_data(folder)
    verifier = train_verifier(data, folder / "verifier", "--max-epoch 8")
    run_train(data, folder / "drafter", f"{DRAFTER} --AR-path {verifier} --max-epoch 4")
    drafter = folder / "drafter" / "checkpoint_last.pt"
    flags = (
        f"--task translation_specdec --AR-path {verifier} --arch acceptance_head --drafter "
        f"{drafter} --head-layers 2 --criterion acceptance_loss --blocks-per-sentence 2"
    )
    save = folder / "head"
    logs = run_train(data, save, f"{flags} {RULE} --max-epoch 6")
    return Trained(data, verifier, drafter, flags, save, logs)


@pytest.fixture
def calibrate(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """``scripts/calibrate_head.py`` in this process; returns its exit status."""

    def run(*arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["calibrate_head.py", *map(str, arguments)])
        return int(calibrate_head.main())

    return run


def test_the_loss_falls_and_only_the_head_is_saved(trained: Trained) -> None:
    valid = trained.logs.of("valid")
    assert valid[-1]["valid_loss"] < valid[0]["valid_loss"]
    assert 0 < valid[-1]["valid_acceptance_rate"] < 1
    assert all(name.startswith("head.") for name in load_state(trained.checkpoint)["model"])


def test_training_resumes(trained: Trained) -> None:
    logs = run_train(trained.data, trained.folder, f"{trained.flags} {RULE} --max-epoch 7")
    assert len(logs.of("train")) == 1


def test_training_of_another_rule_does_not_resume_here(trained: Trained) -> None:
    before = trained.checkpoint.read_bytes()
    with pytest.raises(Exception, match="Cannot load model parameters") as caught:
        run_train(trained.data, trained.folder, f"{trained.flags} --max-epoch 9")
    assert "trained with beta 3, not 1" in str(caught.value.__context__)
    assert trained.checkpoint.read_bytes() == before


def test_a_head_for_sampling(
    trained: Trained, tmp_path: Path, calibrate: Callable[..., int]
) -> None:
    """It is calibrated with the labels that it was trained with, and used with no others."""
    save, output = tmp_path / "save", tmp_path / "acceptance_head.sampling.pt"
    sampling = "--sampling --sampling-topp 0.8 --temperature 0.7"
    logs = run_train(trained.data, save, f"{trained.flags} {sampling} --max-update 3")
    assert 0 < logs.of("valid")[-1]["valid_acceptance_rate"] < 1
    assert calibrate(save / "checkpoint_last.pt", output) == 0
    head = TrainedHead(str(save / "checkpoint_last.pt"))
    drafter, rule = head.labeller.drafter.model, AcceptanceRule(sampling=Sampling(topp=0.8))
    assert head.labeller.rule == rule
    first, again = head.predict("valid"), head.predict("valid")
    assert torch.equal(first.logits, again.logits)
    assert torch.equal(first.survived, again.survived)
    assert load_head(output, drafter, rule, 4, 0.7).settings.rule_temperature == 0.7
    with pytest.raises(
        CheckpointError, match=r"give --sampling --sampling-topp 0\.8 --temperature 0\.7"
    ):
        load_head(output, drafter, rule, 4)


def test_calibrated_head_is_the_trained_one(
    trained: Trained,
    tmp_path: Path,
    calibrate: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    output, figures = tmp_path / "acceptance_head.pt", tmp_path / "head.json"
    assert calibrate(trained.checkpoint, output, "--json", figures) == 0
    assert "uncalibrated token" in capsys.readouterr().out
    results = json.loads(figures.read_text("utf-8"))
    exported = tmp_path / "drafter.pt"
    export_checkpoint(str(trained.drafter), str(exported), "en", "de")
    assert find_head(exported, AcceptanceRule(3, 1.0)) == output
    head_before = TrainedHead(str(trained.checkpoint))
    drafter = head_before.task.load_drafter(str(exported))
    head = load_head(output, drafter, AcceptanceRule(3, 2.0), 4)
    assert head.settings.temperature == pytest.approx(results["temperature"])
    assert head.settings.bias == pytest.approx(results["bias"])
    torch.testing.assert_close(
        head.state_dict()["out.weight"],
        head_before.head.state_dict()["out.weight"],
        rtol=1e-3,
        atol=1e-4,
    )
    with pytest.raises(CheckpointError, match="trained for relaxed"):
        load_head(output, drafter, AcceptanceRule(), 4)


def test_predictions_are_of_the_blocks_that_decoding_drafts(
    trained: Trained, tmp_path: Path
) -> None:
    """On the verifier's own output, strict decoding drafts these very blocks."""
    save = tmp_path / "strict"
    run_train(trained.data, save, f"{trained.flags} --max-update 1")
    head = TrainedHead(str(save / "checkpoint_last.pt"))
    head.task.load_dataset("valid")
    generator = SpeculativeGenerator(
        head.task.verifier, head.labeller.drafter.model, head.task.target_dictionary
    )
    batches = head.task.get_batch_iterator(head.task.dataset("valid"), max_tokens=200)
    steps = decided = accepted = 0
    for sample in batches.next_epoch_itr(shuffle=False):
        hypotheses = [h[0] for h in generator.generate(None, sample)]
        pad = head.labeller.padding
        sample["target"] = torch.nn.utils.rnn.pad_sequence(
            [h["tokens"] for h in hypotheses], batch_first=True, padding_value=pad
        ).clone()
        _, survived, slots, _ = head._predict(sample)
        steps += len(survived)
        decided += int(slots.sum())
        accepted += int(survived.sum())
    statistics = generator.statistics
    assert (steps, accepted) == (statistics.steps, statistics.accepted_tokens)
    assert accepted < decided <= accepted + steps


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{verifier}", "{out}"], "not an acceptance head"),
        (["{head}", "{out}", "--drafter", "{verifier}"], "is no drafter"),
        (["{head}", "{out}", "--drafter", "{other}"], "not the drafter that"),
        (["{head}", "{out}", "--subset", "nothing"], "nothing"),
        (["{head}", "{nowhere}"], "there is no folder"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    trained: Trained,
    tmp_path: Path,
    arguments: list[str],
    message: str,
    calibrate: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = tmp_path / "other.pt"
    if "{other}" in arguments:
        state = torch.load(trained.drafter, weights_only=True)
        state["model"]["decoder.mask_embedding"] += 1
        torch.save(state, other)
    places = {
        "verifier": trained.verifier,
        "head": trained.checkpoint,
        "out": tmp_path / "acceptance_head.pt",
        "nowhere": tmp_path / "nowhere" / "acceptance_head.pt",
        "other": other,
    }
    assert calibrate(*(argument.format(**places) for argument in arguments)) == 1
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("calibrate_head.py: ")
    assert message in last
    assert not (tmp_path / "acceptance_head.pt").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [("--drafter=", "--drafter"), ("--head-layers -1", "--head-layers -1")],
)
def test_bad_training_flags(trained: Trained, tmp_path: Path, flags: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run_train(trained.data, tmp_path, f"{trained.flags} {flags}")


def test_the_script_prints_its_usage() -> None:
    done = subprocess.run([str(ROOT / "scripts/train_head.sh")], capture_output=True, text=True)
    assert done.returncode == 2
    assert "BIN_DIR VERIFIER DRAFTER SAVE_DIR" in done.stderr
