"""``scripts/calibrate_head.py``: from a trained head to the file that decoding reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.models.trained import Trained

from specdec_plugins.checkpoints.export import Training, export_checkpoint
from specdec_plugins.checkpoints.head_file import find_head, load_head
from specdec_plugins.cli import calibrate_head
from specdec_plugins.decoding.acceptance import RelaxedRule, Scoring
from specdec_plugins.evaluation.calibration import TrainedHead


def test_calibrated_head_is_the_trained_one(trained: Trained, tmp_path: Path) -> None:
    output, exported = tmp_path / "acceptance_head.pt", tmp_path / "drafter.pt"
    diagram = tmp_path / "reliability"
    assert calibrate_head.main([str(trained.head), str(output), "--plot", str(diagram)]) == 0
    assert {path.name for path in tmp_path.glob("reliability.*")} == {
        "reliability.png",
        "reliability.svg",
    }
    export_checkpoint(str(trained.drafter), str(exported), Training(("en", "de")))
    assert find_head(exported, "relaxed") == output
    before = TrainedHead(str(trained.head))
    drafter = before.task.load_drafter(str(exported))
    head = load_head(output, drafter, Scoring(RelaxedRule(3, 2.0)).values, 4)
    weights = (h.state_dict()["out.weight"] for h in (head, before.head))
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "flags",
    [
        "{verifier} out.pt",
        "{head} out.pt --drafter {verifier}",
        "{head} out.pt --drafter other.pt",
        "{head} out.pt --AR-path moved",
        "{head} out.pt --subset nothing",
        "{head} nowhere/out.pt",
        "{head} out.pt --plot nowhere/reliability",
    ],
)
def test_bad_input(
    trained: Trained, tmp_path: Path, flags: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if "other.pt" in flags:
        state = torch.load(trained.drafter, weights_only=True)
        state["model"]["decoder.mask_embedding"] += 1
        torch.save(state, "other.pt")
    words = flags.format(verifier=trained.verifier, head=trained.head).split()
    assert calibrate_head.main(words) == 1
    assert not Path("out.pt").exists()
