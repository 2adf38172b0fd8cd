"""Our run of an encoder gives what fairseq's own forward gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import make_verifier
from helpers.models.drafters import make_targets

from specdec_plugins.decoding.steps.encoder import (
    EncoderStep,
    MemoryStep,
    SourceReader,
    SourceStep,
    embeddings,
    frozen_encoder,
)
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.engine import Engine
from specdec_plugins.engines.onnxruntime import OnnxRuntimeEngine
from specdec_plugins.models.layers import DecoderLayerRunner, source_memory


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

    def louder(self: object, *args: object, **kwargs: object) -> Any:
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


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"encoder_normalize_before": True, "encoder_learned_pos": True},
        {"layernorm_embedding": True, "no_scale_embedding": True},
        {"no_token_positional_embeddings": True, "quant_noise_pq": 0.1},
    ],
    ids=lambda settings: "-".join(settings) or "post-norm",
)
@pytest.mark.parametrize("engine", [EagerEngine, OnnxRuntimeEngine])
def test_a_source_is_read_from_its_tokens(
    engine: Callable[[], Engine], settings: dict[str, Any]
) -> None:
    verifier = make_verifier(**settings).to(engine().dtype)
    decoder = verifier.decoder
    reader = SourceReader(verifier, engine())
    for length in (5, 1, 9, 5):
        source = make_targets([length], seed=length)
        with torch.no_grad():
            states = verifier.encoder(source, torch.tensor([length]))["encoder_out"][0]
            layers = [DecoderLayerRunner(layer) for layer in decoder.layers]
            expected = source_memory(layers, states)[:, :, 0]
            found = reader.read(source[0])
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_int8_reads_exact_keys_and_values() -> None:
    """Rounding is the encoder's alone."""
    verifier = make_verifier().float()
    step = SourceStep(verifier)
    tokens = make_targets([9], seed=1)
    inputs = (tokens, torch.arange(9)[None], step.example(1, 9, 9)[2])
    engine = OnnxRuntimeEngine("int8")
    with torch.no_grad():
        (expected,) = step(*inputs)
        x = embeddings(step.encoder, *inputs)
        memory = MemoryStep([DecoderLayerRunner(layer) for layer in verifier.decoder.layers])
    (states,) = engine.prepare(EncoderStep(step.encoder))(x, torch.zeros(1, 1, 1, 9))
    (rounded,) = memory(states.transpose(0, 1))
    (found,) = engine.prepare(step)(*inputs)
    torch.testing.assert_close(found, rounded)
    assert (found - expected).norm() > 1e-4 * expected.norm()
