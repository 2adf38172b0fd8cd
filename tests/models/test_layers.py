"""The layer runner, position table and masks compute what fairseq's own decoder computes."""

from __future__ import annotations

import pytest
import torch
from conftest import make_verifier
from fairseq.models.transformer import TransformerModelBase
from fairseq.modules import LearnedPositionalEmbedding, SinusoidalPositionalEmbedding
from helpers.models.drafters import make_targets

from specdec_plugins.host.fairseq_types import EncoderOut
from specdec_plugins.models.attention import among_themselves
from specdec_plugins.models.layers import (
    DecoderLayerRunner,
    additive,
    position_table,
    source_mask,
)

PAD = 1

pytestmark = pytest.mark.usefixtures("exact_softmax")


def ours(
    model: TransformerModelBase, tokens: torch.Tensor, encoder_out: EncoderOut
) -> torch.Tensor:
    """The decoder's forward, put together from the pieces under test."""
    decoder = model.decoder
    slots = tokens.size(1)
    table = position_table(decoder.embed_positions, slots, PAD)
    assert table is not None
    x = decoder.embed_scale * decoder.embed_tokens(tokens) + table
    mask = additive(torch.ones(slots, slots).tril().bool(), x.dtype)
    memory_mask = source_mask(encoder_out, x.dtype)
    for layer in decoder.layers:
        runner = DecoderLayerRunner(layer)
        memory = runner.project(encoder_out["encoder_out"][0])
        x = runner(x, among_themselves(mask, layer.self_attn), memory, memory_mask)
    if decoder.layer_norm is not None:
        x = decoder.layer_norm(x)
    return decoder.output_layer(x)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("pre_norm", [False, True])
def test_output_and_gradients_are_those_of_fairseq(
    pre_norm: bool, learned: bool, activation: str, padded: bool
) -> None:
    model = make_verifier(
        decoder_normalize_before=pre_norm,
        encoder_normalize_before=pre_norm,
        decoder_learned_pos=learned,
        activation_fn=activation,
    )
    lengths = [5, 3, 7] if padded else [6, 6]
    source = make_targets(lengths, seed=1).flip(1)
    tokens = make_targets([9] * len(lengths), seed=2)
    encoder_out = model.encoder(source, src_lengths=torch.tensor(lengths))
    assert (source_mask(encoder_out, torch.float64) is not None) == padded
    parameters = [p for p in model.parameters() if p.requires_grad]
    weights = torch.randn(len(tokens), 9, 24, dtype=torch.float64)
    results = []
    for logits in (model.decoder(tokens, encoder_out)[0], ours(model, tokens, encoder_out)):
        loss = (logits * weights).sum()
        results.append(
            (logits, torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True))
        )
    (expected, gradients), (found, our_gradients) = results
    torch.testing.assert_close(found, expected, atol=1e-11, rtol=1e-10)
    for ours_, theirs in zip(our_gradients, gradients):
        assert (ours_ is None) == (theirs is None)
        if theirs is not None:
            torch.testing.assert_close(ours_, theirs, atol=1e-9, rtol=1e-9)


def test_every_dropout_of_a_layer_is_applied() -> None:
    """Each kind alone: with the same random numbers, what fairseq's layer gives."""
    source = torch.randint(4, 24, (2, 6))
    tokens = torch.randint(4, 24, (2, 5))
    for name in ("dropout", "activation_dropout"):
        model = make_verifier(**{name: 0.5}).train()
        encoder_out = model.eval().encoder(source, src_lengths=torch.tensor([6, 6]))
        for layer in model.decoder.layers:
            layer.train()
        # fairseq's layers draw in the same order, for (slots, batch) where ours have (batch,
        # slots): with one row and the embedding's dropout off, the draws are the same.
        one = {key: [v[:, :1] for v in values] for key, values in encoder_out.items() if values}
        one["encoder_padding_mask"] = []
        torch.manual_seed(3)
        found = ours(model, tokens[:1], one)
        model.decoder.dropout_module.eval()
        torch.manual_seed(3)
        expected = model.decoder(tokens[:1], one)[0]
        torch.testing.assert_close(found, expected, atol=1e-11, rtol=1e-10)


@pytest.mark.parametrize("length", [1, 7, 1500])
def test_position_table_of_sinusoids(length: int) -> None:
    module = SinusoidalPositionalEmbedding(16, PAD, 1024)
    table = position_table(module, length, PAD)
    assert table is not None
    assert table.shape == (length, 16)
    expected = SinusoidalPositionalEmbedding.get_embedding(PAD + 1 + length, 16, PAD)
    assert torch.equal(table, expected[PAD + 1 :])


def test_position_table_of_learned_positions() -> None:
    module = LearnedPositionalEmbedding(10 + PAD + 1, 16, PAD)
    for length, rows in ((4, 4), (10, 10), (25, 10)):
        table = position_table(module, length, PAD)
        assert table is not None
        assert torch.equal(table, module.weight[PAD + 1 : PAD + 1 + rows])
    assert position_table(None, 4, PAD) is None


def test_additive_mask() -> None:
    mask = additive(torch.tensor([[True, False]]), torch.float16)
    assert mask.dtype == torch.float16
    assert mask[0, 0] == 0
    assert mask.isfinite().all()
    assert mask.softmax(-1).tolist() == [[1, 0]]
