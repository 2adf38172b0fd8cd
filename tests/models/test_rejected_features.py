"""Masks are given what the verifier computed for their positions after a rejected token."""

from __future__ import annotations

from typing import Any

import torch
from conftest import make_batch, make_task, make_verifier

from specdec_plugins.data.block_mask import Blocks
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.models.block_causal import BlockCausalConfig, BlockCausalDrafter

K, DIM = 4, 16


def make_drafter(verifier: Any, task: Any) -> BlockCausalDrafter:
    task.verifier = verifier
    cfg = BlockCausalConfig(
        block_size=K,
        max_source_positions=64,
        max_target_positions=64,
        decoder_layers=2,
        encoder_embed_dim=DIM,
        decoder_embed_dim=DIM,
        decoder_ffn_embed_dim=32,
        decoder_attention_heads=2,
        dropout=0.0,
        share_verifier_encoder=True,
        verifier_features=True,
        rejected_features=True,
        verifier_embed_dim=DIM,
    )
    torch.manual_seed(1)
    return BlockCausalDrafter.build_model(cfg, task).double()


def test_drafting_gives_each_mask_the_state_left_at_its_position() -> None:
    task = make_task()
    verifier = make_verifier(task)
    drafter = make_drafter(verifier, task).eval()
    net_input = make_batch([8])["net_input"]
    limits = GenerationLimits(max_len_b=20)
    generator = SpeculativeGenerator(verifier, drafter, task.target_dictionary, K, limits=limits)
    steps: list[tuple[int, int, torch.Tensor]] = []
    original = generator.drafter.draft  # type: ignore[union-attr]

    def record(last: Any, tokens: Any, new: Any, lengths: Any, *rest: Any) -> torch.Tensor:
        steps.append((int(lengths), int(new), original(last, tokens, new, lengths, *rest)))
        return steps[-1][2]

    generator.drafter.draft = record  # type: ignore[method-assign, union-attr]
    target = generator.generate([], {"net_input": net_input})[0][0]["tokens"][None]
    encoder_out = drafter.encode(net_input["src_tokens"], net_input["src_lengths"])
    clean = drafter.verifier_states(target, encoder_out)
    decoder, runners = drafter.decoder, drafter.decoder.runners()
    table = decoder.positions(target.size(1) + K)
    memory = decoder.memory(encoder_out, runners, table)
    hinted = 0
    for i, (length, new, draft) in enumerate(steps):
        left = torch.zeros(1, K, DIM, dtype=torch.float64)
        if i > 0:
            before = length - new
            # The verifier over the old prefix and the old draft, as a plain forward pass.
            sequence = torch.cat([target[:, :before], steps[i - 1][2], target[:, :1]], dim=1)
            rows = drafter.verifier_states(sequence, encoder_out)[:, length : before + K + 1]
            left[:, : rows.size(1)] = rows
            hinted += rows.size(1)
        blocks = Blocks.cut(target, torch.tensor([[length]]), K, 1)
        features = torch.cat([clean, left], dim=1)
        none = torch.zeros_like(blocks.scored)
        logits = drafter._score(target, blocks, none, runners, table, memory, features)
        assert decoder.best(logits)[0, 0].tolist() == draft[0].tolist()
    assert hinted > 0


def test_training_replaces_the_token_before_each_cut() -> None:
    task = make_task()
    verifier = make_verifier(task)
    drafter = make_drafter(verifier, task).eval()
    net_input = make_batch([8, 5])["net_input"]
    target = torch.randint(4, 20, (2, 9))
    blocks = Blocks.cut(target, torch.tensor([[3], [8]]), K, 1)
    encoder_out = drafter.encode(net_input["src_tokens"], net_input["src_lengths"])
    states = drafter.verifier_states(target, encoder_out)
    left = drafter.rejected_states(target, blocks, states, encoder_out).view(2, K, DIM)
    assert not torch.allclose(left[0, 0], states[0, 3])
    assert torch.equal(left[1, 1:], torch.zeros(K - 1, DIM, dtype=torch.float64))
    again = drafter.rejected_states(target, blocks, states, encoder_out).view(2, K, DIM)
    assert torch.equal(left, again)


def test_the_projection_is_trained() -> None:
    task = make_task()
    drafter = make_drafter(make_verifier(task), task)
    net_input = make_batch([8, 5])["net_input"]
    target = torch.randint(4, 20, (2, 9))
    cuts = torch.tensor([[1, 3], [2, 5]])
    output = drafter(net_input["src_tokens"], net_input["src_lengths"], target, cuts)
    output.logits.logsumexp(-1).sum().backward()
    projection = drafter.decoder.rejected_projection  # type: ignore[attr-defined]
    assert projection.weight.grad.abs().sum() > 0
