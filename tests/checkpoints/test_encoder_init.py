"""A verifier's encoder is copied exactly, or refused with what does not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_batch, make_dictionary, make_task, make_verifier
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerModelBase
from helpers.models.drafters import block_args, make_block, make_causal, save_checkpoint

from specdec_plugins.checkpoints.pair import init_encoder_from
from specdec_plugins.files.errors import CheckpointError
from specdec_plugins.host.checkpoints import without_copies
from specdec_plugins.models.block_nat import BlockDrafter
from specdec_plugins.models.drafter import Drafter

SETTINGS: dict[str, dict[str, Any]] = {
    "post-norm": {},
    "pre-norm": {"encoder_normalize_before": True},
    "learned positions": {"encoder_learned_pos": True},
    "gelu": {"activation_fn": "gelu"},
    "embedding norm": {"layernorm_embedding": True},
    "unscaled": {"no_scale_embedding": True},
}


def verifier_file(path: Path, **overrides: Any) -> tuple[TransformerModelBase, Path]:
    model = make_verifier(**overrides).float()
    return model, save_checkpoint(path / "verifier.pt", model)


def encode(model: BaseFairseqModel) -> torch.Tensor:
    net_input = make_batch([5, 3, 8])["net_input"]
    with torch.no_grad():
        encoder_out = model.encoder(net_input["src_tokens"], src_lengths=net_input["src_lengths"])
    return encoder_out["encoder_out"][0]


@pytest.mark.parametrize("name", SETTINGS)
def test_encoder_output_is_the_verifiers_bit_for_bit(name: str, tmp_path: Path) -> None:
    verifier, path = verifier_file(tmp_path, **SETTINGS[name])
    before = make_causal(spread=False, **SETTINGS[name]).float()
    drafter = make_causal(spread=False, init_encoder_from=str(path), **SETTINGS[name]).float()
    assert torch.equal(encode(drafter), encode(verifier))
    assert not torch.equal(encode(before), encode(verifier))
    # The decoder is the one it would have had anyway.
    for begun, untouched in zip(drafter.decoder.parameters(), before.decoder.parameters()):
        assert torch.equal(begun, untouched)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"encoder_embed_dim": 32}, "encoder.embed_tokens.weight"),
        ({"encoder_layers": 1}, "encoder.layers.1."),
        ({"encoder_layers": 3}, "encoder.layers.2."),
        ({"encoder_attention_heads": 4}, "encoder_attention_heads"),
        ({"activation_fn": "gelu"}, "activation_fn"),
        ({"layernorm_embedding": True}, "encoder.layernorm_embedding."),
    ],
)
def test_a_mismatch_is_named(overrides: dict[str, Any], named: str, tmp_path: Path) -> None:
    _, path = verifier_file(tmp_path)
    with pytest.raises(CheckpointError, match=named):
        make_causal(init_encoder_from=str(path), **overrides)


@pytest.mark.parametrize("make", [make_causal, make_block])
def test_another_dictionary_is_refused(make: Callable[..., Drafter], tmp_path: Path) -> None:
    _, path = verifier_file(tmp_path)
    larger, reordered = make_task(make_dictionary(25)), make_task()
    reordered.source_dictionary = make_dictionary()
    reordered.source_dictionary.symbols.reverse()
    for task in (larger, reordered):
        with pytest.raises(CheckpointError, match="dictionary"):
            make(task, init_encoder_from=str(path))
    state = torch.load(path, weights_only=False)
    torch.save({**state, "task_state": {}}, path)  # another program's, which does not say
    with pytest.raises(CheckpointError, match="embed_tokens"):
        make(larger, init_encoder_from=str(path))


def test_the_published_drafter_takes_what_there_is(tmp_path: Path) -> None:
    """Its encoder is unscaled and may have learned positions: never an exact copy."""
    verifier, path = verifier_file(tmp_path)
    args = block_args(init_encoder_from=str(path), encoder_learned_pos=True, activation_fn="gelu")
    drafter = BlockDrafter.build_model(args, make_task())
    init_encoder_from(drafter.encoder, str(path), make_task(), drafter.exact_encoder)
    drafters, saved = without_copies(drafter.encoder.state_dict()), verifier.encoder.state_dict()
    assert "embed_positions.weight" in drafters
    for name, tensor in drafters.items():
        if name not in ("version", "embed_positions.weight"):
            assert torch.equal(tensor, saved[name]), name
