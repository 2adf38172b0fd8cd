"""What is built as fairseq's Transformer, and what is refused by name."""

from __future__ import annotations

import logging
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
from fairseq.models.transformer_align import TransformerAlignModel
from fairseq.tasks import TASK_REGISTRY, register_task
from fairseq.tasks.translation import TranslationTask
from stand_ins import STAND_INS, StandIn

from specdec_plugins.checkpoints.config import saved_model
from specdec_plugins.checkpoints.export import export_checkpoint
from specdec_plugins.checkpoints.loading import load_model, load_state
from specdec_plugins.cli import check, encoder_initial, inference
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
        ({"use_rope": True}, "has 'use_rope', which"),
        ({"rope_args": {"base": 1e4}}, "has 'rope_args_base', which"),
        ({"use_alibi": True}, "has 'use_alibi', which"),
        ({"max_rel_pos": 16}, "has 'max_rel_pos', which"),
        ({"recurrent_decoder": 1}, "has 'recurrent_decoder', which"),
        ({"decoder_adapters": ["de"]}, "has 'decoder_adapters', which"),
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


@pytest.mark.parametrize(
    "arch", ["transformer", "transformer_iwslt_de_en", "transformer_4x", "big"]
)
@pytest.mark.parametrize("form", [dict, lambda values: Namespace(**values)])
def test_whatever_its_name(arch: str, form: Any, tmp_path: Path) -> None:
    """Unless somebody says that it leaves the network as it is."""
    values = {**saved(StandIn(arch=arch), tmp_path), "use_rope": True}
    with pytest.raises(ConfigError, match="has 'use_rope', which fairseq's Transformer has not"):
        saved_model(form(values))
    found = saved_model(form(values), as_transformer=True)
    assert not hasattr(found, "use_rope")


def test_other_fields_are_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    values = {**saved(StandIn(), tmp_path), "twice_alpha": 2, "kd_temperature": 0.5, "unset": None}
    with caplog.at_level(logging.WARNING):
        assert [saved_model(Namespace(**values)).arch for _ in range(2)] == ["transformer"] * 2
    assert [record.message for record in caplog.records] == [
        "a checkpoint's model transformer has unknown fields, which are left out: "
        "'kd_temperature', 'twice_alpha'"
    ]


def import_user_dir() -> None:
    """Register what the modules of a user-dir would."""

    @register_model("transformer_mine")
    class Mine(TransformerModel):
        pass

    for model, arch in (("transformer_mine", "mine_small"), ("transformer", "wide_shallow")):
        register_model_architecture(model, arch)(lambda args: base_architecture(args))
    register_task("twice_translation")(type("Twice", (TranslationTask,), {}))


def test_a_user_dir_changes_nothing(tmp_path: Path) -> None:
    """Whether it has been imported, by this door or that one, a Transformer is one."""
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


def test_another_name_is_exported_as_a_transformer(tmp_path: Path) -> None:
    path, target = OTHER_NAME.save(tmp_path / "verifier.pt"), tmp_path / "exported.pt"
    assert export_script.main([str(path), str(target)]) == 0
    assert load_state(target)["cfg"]["model"].arch == "transformer"
    assert load_model(target, OTHER_NAME.task())


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
