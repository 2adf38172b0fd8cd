"""Weights under older names: read alike everywhere, and never dropped by what copies them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_task
from helpers.models.drafters import make_causal
from helpers.models.stand_ins import STAND_INS, StandIn
from helpers.runs.scripts_here import load_script

from specdec_plugins.checkpoints.export import export_checkpoint
from specdec_plugins.checkpoints.loading import load_model, load_state
from specdec_plugins.checkpoints.pair import init_encoder_from, write_initial_checkpoint
from specdec_plugins.files.errors import CheckpointError
from specdec_plugins.host.checkpoints import without_copies

KINDS = ("fused, joint", "fused, numbered norms", "fused, embed_out, separate")
KINDS += ("fused, tied, separate", "no versions")


def assert_equal(path: Path | str, wanted: dict[str, Any]) -> None:
    weights = without_copies(load_state(path)["model"])
    assert weights.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(weights[name].float(), tensor), name


@pytest.mark.parametrize("name", KINDS)
def test_all_tools_read_what_the_model_is(name: str, tmp_path: Path) -> None:
    """As loaded, which test_stand_ins compares with stock fairseq."""
    kind, target = STAND_INS[name], str(tmp_path / "out.pt")
    path = kind.save(tmp_path / "old.pt")
    wanted = without_copies(load_model(path, kind.task()).state_dict())
    export_checkpoint(str(path), target)
    assert_equal(target, wanted)
    load_script("average_checkpoints").average([path, path], target)
    assert_equal(target, wanted)
    write_initial_checkpoint(str(path), target)
    of_encoder = {name: t for name, t in wanted.items() if not name.startswith("decoder")}
    assert_equal(target, of_encoder)
    encoder = make_causal(**kind.settings).encoder
    assert encoder is not None
    for name in init_encoder_from(encoder.float(), str(path), make_task(), exact=False):
        assert torch.equal(encoder.state_dict()[name], of_encoder.pop(f"encoder.{name}"))
    assert of_encoder.keys() <= {"encoder.version"}


def test_tools_stop_at_weights_that_they_do_not_know(tmp_path: Path) -> None:
    path = StandIn().save(tmp_path / "odd.pt")
    state = torch.load(path, weights_only=False)
    name = "decoder.layers.0.fc3.weight"
    state["model"][name] = torch.zeros(2)
    torch.save(state, path)
    target = tmp_path / "out.pt"
    for write in (
        lambda: export_checkpoint(str(path), str(target)),
        lambda: write_initial_checkpoint(str(path), str(target)),
        lambda: init_encoder_from(make_causal().encoder, str(path), make_task()),
    ):
        with pytest.raises(CheckpointError, match=name):
            write()
    assert not target.exists()
