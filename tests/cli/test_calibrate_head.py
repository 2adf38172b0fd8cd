"""``scripts/calibrate_head.py``: from a trained head to the file that decoding reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from trained import Trained

from specdec_plugins.checkpoints.export import Training, export_checkpoint
from specdec_plugins.checkpoints.head_file import find_head, load_head
from specdec_plugins.cli import calibrate_head
from specdec_plugins.decoding.acceptance import RelaxedRule, Scoring
from specdec_plugins.evaluation.calibration import TrainedHead
from specdec_plugins.files.errors import CheckpointError


def calibrate(*arguments: object) -> int:
    return int(calibrate_head.main([str(argument) for argument in arguments]))


def test_calibrated_head_is_the_trained_one(
    trained: Trained,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "acceptance_head.pt"
    assert calibrate(trained.head, output) == 0
    printed = capsys.readouterr().out
    assert "uncalibrated token" in printed
    exported = tmp_path / "drafter.pt"
    export_checkpoint(str(trained.drafter), str(exported), Training(("en", "de")))
    assert find_head(exported, "relaxed") == output
    head_before = TrainedHead(str(trained.head))
    drafter = head_before.task.load_drafter(str(exported))
    head = load_head(output, drafter, Scoring(RelaxedRule(3, 2.0)).values, 4)
    fitted = f"temperature {head.settings.temperature:.3f}, bias {head.settings.bias:.3f}"
    assert fitted in printed
    torch.testing.assert_close(
        head.state_dict()["out.weight"],
        head_before.head.state_dict()["out.weight"],
        rtol=1e-3,
        atol=1e-4,
    )
    with pytest.raises(CheckpointError, match="give --beta 3"):
        load_head(output, drafter, Scoring().values, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{verifier}", "{out}"], "not an acceptance head"),
        (["{head}", "{out}", "--drafter", "{verifier}"], "is no drafter"),
        (["{head}", "{out}", "--drafter", "{other}"], "not the drafter that"),
        (["{head}", "{out}", "--drafter", "moved"], "moved: no such file"),
        (["{head}", "{out}", "--AR-path", "moved"], "moved: no such file"),
        (["{head}", "{out}", "--subset", "nothing"], "nothing"),
        (["{head}", "{nowhere}"], "its folder cannot be written to"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    trained: Trained,
    tmp_path: Path,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = tmp_path / "other.pt"
    if "{other}" in arguments:
        state = torch.load(trained.drafter, weights_only=True)
        state["model"]["decoder.mask_embedding"] += 1
        torch.save(state, other)
    places = {
        "verifier": trained.verifier,
        "head": trained.head,
        "out": tmp_path / "acceptance_head.pt",
        "nowhere": tmp_path / "nowhere" / "acceptance_head.pt",
        "other": other,
    }
    assert calibrate(*(argument.format(**places) for argument in arguments)) == 1
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("calibrate_head.py: ")
    assert message in last
    assert not (tmp_path / "acceptance_head.pt").exists()
