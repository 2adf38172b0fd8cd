"""Weights under older names: read alike everywhere, and never dropped by what copies them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import old_names
import pytest
import torch
from conftest import make_batch, make_dictionary, make_task, make_verifier
from drafters import make_causal, save_checkpoint
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from scripts_here import load_script

from specdec_plugins.checkpoints.export import export_checkpoint
from specdec_plugins.checkpoints.loading import load_model, load_state
from specdec_plugins.checkpoints.pair import init_encoder_from, write_initial_checkpoint
from specdec_plugins.files.errors import CheckpointError
from specdec_plugins.host.checkpoints import without_copies

KINDS: dict[str, list[Callable[..., Any]]] = {
    "today's": [],
    "fused, float16, args": [old_names.fused, old_names.half, old_names.before_cfg],
    "numbered norms": [old_names.fused, old_names.numbered_norms, old_names.with_positions],
}
TABLES = {
    "tied": {"share_all_embeddings": True},
    "output tied": {"share_decoder_input_output_embed": True},
    "separate": {},
}


def aged(path: Path, *changes: Callable[..., Any]) -> Path:
    """Change a checkpoint's weights, or with ``before_cfg`` all of it, in place."""
    state = torch.load(path, weights_only=False)
    for change in changes:
        if change is old_names.before_cfg:
            state = change(state)
        else:
            state["model"] = change(state["model"])
    torch.save(state, path)
    return path


def weights_of(path: Path | str) -> dict[str, Any]:
    return without_copies(load_state(path)["model"])


def make_translation_task() -> TranslationTask:
    return TranslationTask(TranslationConfig(), make_dictionary(), make_dictionary())


@pytest.fixture(params=TABLES)
def verifier(request: pytest.FixtureRequest) -> Any:
    return make_verifier(**TABLES[request.param]).float()


def assert_equal(weights: dict[str, Any], wanted: dict[str, Any], precise: bool) -> None:
    assert weights.keys() == wanted.keys()
    for name, tensor in wanted.items():
        expected = tensor if precise or name.endswith("version") else tensor.half().float()
        assert torch.equal(weights[name].float(), expected), name


@pytest.mark.parametrize("kind", KINDS)
def test_all_tools_read_what_the_model_is(kind: str, verifier: Any, tmp_path: Path) -> None:
    wanted = without_copies(verifier.state_dict())
    path = aged(save_checkpoint(tmp_path / "old.pt", verifier), *KINDS[kind])
    precise = old_names.half not in KINDS[kind]
    target = str(tmp_path / "out.pt")

    model = load_model(path, make_translation_task())
    assert_equal(without_copies(model.state_dict()), wanted, precise)
    export_checkpoint(str(path), target)
    assert_equal(weights_of(target), wanted, precise)
    export_checkpoint(str(path), target, half=True)
    assert_equal(weights_of(target), wanted, False)
    load_script("average_checkpoints").average([path, path], target)
    assert_equal(weights_of(target), wanted, precise)
    write_initial_checkpoint(str(path), target)
    of_encoder = {name: t for name, t in wanted.items() if not name.startswith("decoder")}
    assert_equal(weights_of(target), of_encoder, precise)
    encoder = make_causal().encoder
    assert encoder is not None
    names = init_encoder_from(encoder.float(), str(path), make_task())
    copied = {f"encoder.{name}": encoder.state_dict()[name] for name in names}
    assert_equal(copied, {name: of_encoder[name] for name in copied}, precise)
    assert of_encoder.keys() - copied.keys() <= {"encoder.version"}


def test_no_version_means_no_norm_after_the_layers(tmp_path: Path) -> None:
    """fairseq does so itself; the written checkpoint says so, too."""
    norms = {"encoder_normalize_before": True, "decoder_normalize_before": True}
    source = save_checkpoint(tmp_path / "old.pt", make_verifier(**norms))
    aged(source, old_names.without_versions, old_names.fused)
    target = tmp_path / "new.pt"
    export_checkpoint(str(source), str(target))
    inputs = [make_batch([5, 3])["net_input"][name] for name in ("src_tokens", "src_lengths")]
    outputs = []
    for path in (source, target):
        model = load_model(path, make_translation_task()).half().float()
        assert model.encoder.layer_norm is None
        assert model.decoder.layer_norm is None
        outputs.append(model(*inputs, inputs[0])[0])
    assert torch.equal(*outputs)


def test_tools_stop_at_weights_that_they_do_not_know(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "odd.pt", make_verifier())
    state = torch.load(path, weights_only=False)
    name, fault = "decoder.layers.0.fc3.weight", "is unknown"
    state["model"][name] = torch.zeros(2)
    torch.save(state, path)
    target = tmp_path / "out.pt"
    for write in (export_checkpoint, write_initial_checkpoint):
        with pytest.raises(CheckpointError, match=f"{name} {fault}; give a checkpoint"):
            write(str(path), str(target))
    with pytest.raises(CheckpointError, match=f"{name} {fault}"):
        init_encoder_from(make_causal().encoder, str(path), make_task())
    assert not target.exists()
