"""Architectures that are built as fairseq's Transformer, and those that are refused."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.models import (
    ARCH_CONFIG_REGISTRY,
    ARCH_MODEL_REGISTRY,
    MODEL_REGISTRY,
    register_model,
    register_model_architecture,
)
from fairseq.models.transformer import TransformerModel, base_architecture
from fairseq.tasks import TASK_REGISTRY, register_task
from fairseq.tasks.translation import TranslationTask
from helpers.models.stand_ins import StandIn

from specdec_plugins.checkpoints.config import saved_model
from specdec_plugins.checkpoints.loading import load_model, load_state
from specdec_plugins.cli import check, encoder_initial, inference
from specdec_plugins.cli import export_checkpoint as export_script
from specdec_plugins.files.errors import ConfigError

UNKNOWN = StandIn(arch="transformer_4x")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The model's part of a stand-in's configuration."""
    path = UNKNOWN.save(tmp_path_factory.mktemp("unknown") / "verifier.pt")
    return vars(torch.load(path, weights_only=False)["cfg"]["model"])


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"decoder_layers": None}, "unknown, and no Transformer: it has no decoder_layers;"),
        ({"use_rotary": True}, "has 'use_rotary', which fairseq's Transformer lacks;"),
        ({"rope_args": {"base": 1e4}}, "has 'rope_args_base', which"),
        ({"arch": "lstm", "_name": "lstm"}, "architecture 'lstm' is not supported"),
        ({"decoder_glu": torch.ones(2)}, "has 'decoder_glu', which"),
        ({"adaptive_softmax_cutoff": "1,2"}, "adaptive softmax is not supported"),
    ],
)
def test_another_network_is_refused(
    changes: dict[str, object], fault: str, saved: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=fault):
        saved_model(Namespace(**{**saved, **changes}))


def import_user_dir() -> None:
    """Register what the modules of a user-dir would."""

    @register_model("transformer_mine")
    class Mine(TransformerModel):
        pass

    for model, arch in (("transformer_mine", "mine_small"), ("transformer", "wide_shallow")):
        register_model_architecture(model, arch)(lambda args: base_architecture(args))
    register_task("twice_translation")(type("Twice", (TranslationTask,), {}))


def test_a_user_dir_changes_nothing(tmp_path: Path) -> None:
    """Imported or not, a Transformer is one."""
    archs = ("transformer_mine", "mine_small", "wide_shallow")
    paths = [StandIn(arch=arch).save(tmp_path / f"{arch}.pt") for arch in archs]
    for path in paths:
        state = torch.load(path, weights_only=False)
        state["cfg"]["task"] = {"_name": "twice_translation", "source_lang": "en", "alpha": 0}
        torch.save(state, path)
    registries = ARCH_MODEL_REGISTRY, ARCH_CONFIG_REGISTRY, MODEL_REGISTRY, TASK_REGISTRY
    before = [dict(registry) for registry in registries]
    for prepare in (lambda: None, import_user_dir):
        prepare()
        assert {type(load_model(path, UNKNOWN.task())) for path in paths} == {TransformerModel}
        assert {load_state(path)["cfg"]["task"].source_lang for path in paths} == {"en"}
    for registry, names in zip(registries, before):
        registry.clear()
        registry.update(names)


def test_doors_are_told_that_a_field_is_harmless(tmp_path: Path) -> None:
    kind = StandIn(options={"adapter_reg": 1}, arch="indic_base")
    path, out = kind.save(tmp_path / "verifier.pt"), str(tmp_path / "out.pt")
    translated = [str(tmp_path), "--AR-path", str(path), "--strategy", "AR", "--cpu", "--quiet"]
    (tmp_path / "text").write_text("w1 w2\n")
    translated += ["--input-path", str(tmp_path / "text"), "--output-path", str(tmp_path / "out")]
    doors: list[tuple[Any, list[str]]] = [
        (export_script, [str(path), out]),
        (encoder_initial, [str(path), out]),
        (check, [str(path), "--lines", "1", "-s", "en", "-t", "de"]),
        (inference, translated),
    ]
    for door, arguments in doors:
        assert door.main(arguments) in (1, 2)
        assert door.main([*arguments, "--as-transformer"]) == 0


def test_other_unknown_fields_are_named_in_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = StandIn(options={"lucky_number": 7, "nickname": "x"}).save(tmp_path / "verifier.pt")
    for _ in range(2):
        load_state(path)
    (message,) = [line for line in caplog.messages if "lucky_number" in line]
    assert "nickname" in message
