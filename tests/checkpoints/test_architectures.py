"""What is built as fairseq's Transformer, and what is refused by name."""

from __future__ import annotations

import logging
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.models.transformer_align import TransformerAlignModel
from stand_ins import STAND_INS, StandIn

from specdec_plugins.checkpoints.export import export_checkpoint
from specdec_plugins.checkpoints.loading import load_model, load_state
from specdec_plugins.checkpoints.saved_config import saved_model
from specdec_plugins.cli import export_checkpoint as export_script
from specdec_plugins.files.errors import CheckpointError, ConfigError

UNKNOWN = StandIn(arch="transformer_4x")
OTHER_NAME = StandIn(arch="indic_base")


def saved(kind: StandIn, folder: Path) -> dict[str, Any]:
    """The model's part of a stand-in's configuration."""
    state = torch.load(kind.save(folder / "verifier.pt"), weights_only=False)
    return vars(state["cfg"]["model"])


def test_an_unknown_name_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    values = saved(StandIn(arch="transformer_said_once"), tmp_path)
    with caplog.at_level(logging.WARNING):
        built = [saved_model(Namespace(**values)) for _ in range(2)]
    assert {cfg.arch for cfg in built} == {"transformer"}
    assert [record.message for record in caplog.records] == [
        "architecture 'transformer_said_once': built as fairseq's Transformer, not compared with "
        "code of its own"
    ]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"decoder_layers": None}, "unknown, and no Transformer: it has no decoder_layers;"),
        ({"encoder_learned_pos": None}, "no Transformer: it has no encoder_learned_pos;"),
        ({"use_rotary": True}, "has 'use_rotary', which fairseq's Transformer has not;"),
        ({"moe_freq": 2}, "has 'moe_freq', which"),
        ({"decoder_glu": torch.ones(2)}, "has 'decoder_glu', which"),
        ({"adaptive_softmax_cutoff": "1,2"}, "adaptive softmax is not supported"),
    ],
)
def test_what_would_be_another_network_is_refused(
    changes: dict[str, Any], fault: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=fault):
        saved_model(Namespace(**{**saved(UNKNOWN, tmp_path), **changes}))


def test_options_of_training_and_of_tasks_do_not_matter(tmp_path: Path) -> None:
    others = {"clip_norm": 1.0, "encoder_langtok": "src", "use_rotary": False, "lr": [0.1]}
    found = saved_model(Namespace(**{**saved(UNKNOWN, tmp_path), **others}))
    assert found.arch == "transformer"
    assert not vars(found).keys() & others.keys()


@pytest.mark.parametrize(
    "arch", ["lstm", "fconv", "transformer_lm", "mbart_large", "nonautoregressive_transformer"]
)
def test_what_fairseq_knows_as_something_else_stays_refused(arch: str, tmp_path: Path) -> None:
    values = {**saved(UNKNOWN, tmp_path), "_name": arch, "arch": arch}
    with pytest.raises(ConfigError, match=f"architecture '{arch}' is not supported; supported are"):
        saved_model(Namespace(**values))


def test_weights_must_be_a_transformers(tmp_path: Path) -> None:
    path = UNKNOWN.save(tmp_path / "verifier.pt")
    state = torch.load(path, weights_only=False)
    state["model"]["decoder.layers.0.gate.weight"] = torch.zeros(2)
    torch.save(state, path)
    with pytest.raises(CheckpointError, match=r"decoder\.layers\.0\.gate\.weight"):
        load_model(path, UNKNOWN.task())


def test_another_name_is_exported_as_a_transformer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, target = OTHER_NAME.save(tmp_path / "verifier.pt"), tmp_path / "exported.pt"
    assert export_script.main([str(path), str(target)]) == 1
    error = capsys.readouterr().err
    assert "architecture 'indic_base' is unknown" in error
    assert "specdec-export SOURCE TARGET --as-transformer" in error
    assert export_script.main([str(path), str(target), "--as-transformer"]) == 0
    assert load_state(target)["cfg"]["model"].arch == "transformer"
    assert load_model(target, OTHER_NAME.task())


def test_what_aligns_stays_what_it_is(tmp_path: Path) -> None:
    kind = STAND_INS["align"]
    target = tmp_path / "exported.pt"
    export_checkpoint(str(kind.save(tmp_path / "verifier.pt")), str(target))
    model = load_model(target, kind.task())
    assert isinstance(model, TransformerAlignModel)
    assert model.alignment_layer == 1


def test_an_ensemble_is_refused_by_what_to_do(tmp_path: Path) -> None:
    path = UNKNOWN.save(tmp_path / "verifier.pt")
    with pytest.raises(CheckpointError, match="an ensemble cannot be verified with: distil it"):
        load_state(f"{path}:{path}")
