"""Our run of an encoder gives what fairseq's own forward gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import make_verifier
from helpers.models.drafters import make_targets

from specdec_plugins.decoding.steps.encoder import frozen_encoder
from specdec_plugins.engines.eager import EagerEngine


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"encoder_normalize_before": True},
        {"encoder_learned_pos": True, "activation_fn": "gelu"},
        {"layernorm_embedding": True, "no_scale_embedding": True},
        {"no_token_positional_embeddings": True, "encoder_layers": 3},
        {"dropout": 0.3, "activation_dropout": 0.3, "attention_dropout": 0.3},
    ],
    ids=lambda settings: "-".join(settings) or "post-norm",
)
def test_as_fairseq(settings: dict[str, Any], padded: bool) -> None:
    encoder = make_verifier(**settings).encoder
    lengths = torch.tensor([5, 3, 7] if padded else [6, 6, 6])
    source = make_targets(lengths.tolist(), seed=1).flip(1)
    with torch.no_grad():
        expected = encoder(source, src_lengths=lengths)
        encoder.layers[0].self_attn.forward = None  # it is not fairseq's that is run
        found = frozen_encoder(encoder, EagerEngine())(source, lengths)
    assert set(found) <= set(expected)
    real = source.ne(encoder.padding_idx)
    theirs, ours = (out["encoder_out"][0].transpose(0, 1)[real] for out in (expected, found))
    torch.testing.assert_close(ours, theirs, atol=1e-11, rtol=1e-10)
    assert bool(found["encoder_padding_mask"]) == padded
    for mask in found["encoder_padding_mask"]:
        assert torch.equal(mask, ~real)
    embedded, other = (out["encoder_embedding"][0] for out in (found, expected))
    assert torch.equal(embedded, other)


@pytest.mark.parametrize(
    ("part", "method"),
    [
        ("encoder", "forward"),
        ("encoder", "forward_scriptable"),
        ("layer", "forward"),
        ("layer", "residual_connection"),
    ],
)
def test_what_is_of_another_kind_is_run_as_it_is(part: str, method: str) -> None:
    encoder = make_verifier().encoder
    changed = encoder if part == "encoder" else encoder.layers[0]
    original = getattr(type(changed), method)

    def louder(self: Any, *args: Any, **kwargs: Any) -> Any:
        out = original(self, *args, **kwargs)
        if part == "layer":
            return 2 * out
        return {**out, "encoder_out": [2 * out["encoder_out"][0]]}

    source, lengths = make_targets([5, 3], seed=1), torch.tensor([5, 3])
    quiet = frozen_encoder(encoder, EagerEngine())(source, lengths)["encoder_out"][0]
    changed.__class__ = type("Louder", (type(changed),), {method: louder})
    loud = frozen_encoder(encoder, EagerEngine())(source, lengths)["encoder_out"][0]
    assert not torch.allclose(loud, quiet)
    torch.testing.assert_close(loud, encoder(source, src_lengths=lengths)["encoder_out"][0])
