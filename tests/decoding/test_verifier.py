"""Cached scoring of several tokens per row is fairseq's full forward."""

from __future__ import annotations

from argparse import Namespace
from functools import cache
from typing import Any

import fairseq.utils
import pytest
import torch
from conftest import make_batch, make_task, make_verifier
from drafters import make_causal
from fairseq.models.lightconv import LightConvModel
from fairseq.models.lightconv import base_architecture as lightconv_architecture
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdec_plugins.decoding.verifier import CachedVerifier, UnsupportedModelError, check_supported

PAD, EOS = 1, 2

VARIANTS: dict[str, dict[str, Any]] = {
    "post-norm": {},
    "pre-norm": {"encoder_normalize_before": True, "decoder_normalize_before": True},
    "learned positions": {"encoder_learned_pos": True, "decoder_learned_pos": True},
    "no positions": {"no_token_positional_embeddings": True},
    "embedding norm": {"layernorm_embedding": True},
    "unscaled": {"no_scale_embedding": True},
    "shared tables": {"share_all_embeddings": True},
    "narrow output": {"decoder_output_dim": 8},
    "narrow table": {},
    "gelu, 4 heads": {"activation_fn": "gelu", "decoder_attention_heads": 4},
    "unequal sides": {"encoder_embed_dim": 24, "encoder_layers": 1, "decoder_layers": 3},
}


@pytest.fixture(autouse=True, scope="module")
def _exact_softmax() -> Any:
    """fairseq's cross-attention rounds its weights to float32, whatever the model's type."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fairseq.utils, "softmax", lambda x, dim, **_: torch.softmax(x, dim))
        yield


@cache
def verifier(name: str) -> Any:
    model = make_verifier(**VARIANTS[name])
    if name == "narrow table":
        model.decoder.embed_tokens = torch.nn.Embedding(24, 8, PAD, dtype=torch.float64)
        model.decoder.project_in_dim = torch.nn.Linear(8, 16, bias=False, dtype=torch.float64)
    return model


def encode(model: Any, lengths: list[int], seed: int) -> Any:
    net_input = make_batch(lengths, seed=seed)["net_input"]
    return model.encoder(net_input["src_tokens"], src_lengths=net_input["src_lengths"])


def one_row(encoder_out: Any, row: int) -> Any:
    return {
        "encoder_out": [encoder_out["encoder_out"][0][:, row : row + 1]],
        "encoder_padding_mask": [encoder_out["encoder_padding_mask"][0][row : row + 1]],
    }


def full(model: Any, encoder_out: Any, row: int, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """fairseq's logits and states of one row, ``tokens`` being everything after EOS."""
    previous = torch.cat([torch.tensor([EOS]), tokens])[None]
    source = one_row(encoder_out, row)
    states, _ = model.decoder.extract_features(previous, encoder_out=source)
    return model.decoder(previous, encoder_out=source)[0][0], states[0]


@torch.no_grad()
@settings(max_examples=60)
@given(
    name=st.sampled_from(sorted(VARIANTS)),
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    steps=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    seed=st.integers(0, 999),
)
def test_ragged_scoring_is_the_full_forward(
    name: str, lengths: list[int], steps: list[int], seed: int
) -> None:
    """Rows commit parts of what was scored, at their own pace, and drop out at random."""
    model = verifier(name)
    encoder_out = encode(model, lengths, seed)
    torch.manual_seed(seed)
    cached = CachedVerifier(model, PAD)
    cached.start(encoder_out, capacity=24)
    rows = list(range(len(lengths)))
    committed = [torch.empty(0, dtype=torch.long) for _ in rows]
    for slots in steps:
        counts = torch.tensor([len(committed[row]) for row in rows])
        draft = torch.randint(2, 24, (len(rows), slots - 1))
        last = torch.tensor([[int(committed[r][-1]) if len(committed[r]) else EOS] for r in rows])
        logits, states = cached.score(
            torch.cat([last, draft], dim=1), counts, int(counts.max()) + slots
        )
        for i, row in enumerate(rows):
            tokens = torch.cat([committed[row], draft[i]])
            expected, features = full(model, encoder_out, row, tokens)
            torch.testing.assert_close(logits[i], expected[-slots:], atol=1e-9, rtol=1e-8)
            torch.testing.assert_close(states[i], features[-slots:], atol=1e-9, rtol=1e-8)
            accepted = int(torch.randint(0, slots, ()))
            bonus = torch.randint(4, 24, (1,))
            committed[row] = torch.cat([committed[row], draft[i, :accepted], bonus])
        survivors = [i for i in range(len(rows)) if torch.rand(()) < 0.8]
        if survivors and len(survivors) < len(rows):
            rows = [rows[i] for i in survivors]
            cached.keep(torch.tensor(survivors), max(len(committed[row]) for row in rows))


@torch.no_grad()
def test_rejected_drafts_leave_no_trace() -> None:
    model = verifier("post-norm")
    encoder_out = encode(model, [5, 3], 0)
    lengths, found = torch.tensor([2, 4]), []
    for rejected in range(3):
        torch.manual_seed(0)
        cached = CachedVerifier(model, PAD)
        cached.start(encoder_out, capacity=12)
        first = torch.randint(4, 24, (2, 5))
        cached.score(first, torch.tensor([0, 0]), 5)
        right = torch.randint(4, 24, (2, 4))
        for _ in range(rejected):
            cached.score(torch.randint(4, 24, (2, 7)), lengths, 11)
        found.append(cached.score(right, lengths, 8)[0])
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@torch.no_grad()
def test_a_batch_is_its_rows_one_by_one() -> None:
    model = verifier("pre-norm")
    encoder_out = encode(model, [6, 2, 4], 1)
    tokens = torch.randint(4, 24, (3, 5))
    together = CachedVerifier(model, PAD)
    together.start(encoder_out, 8)
    logits, _ = together.score(tokens, torch.zeros(3, dtype=torch.long), 5)
    for row in range(3):
        alone = CachedVerifier(model, PAD)
        alone.start(one_row(encoder_out, row), 8)
        # Token by token, too: the mask is left out here.
        for slot in range(5):
            expected, _ = alone.score(
                tokens[row : row + 1, slot : slot + 1], torch.tensor([slot]), slot + 1
            )
            torch.testing.assert_close(logits[row, slot], expected[0, 0], atol=1e-10, rtol=1e-9)


@torch.no_grad()
@pytest.mark.parametrize("name", ["post-norm", "learned positions"])
def test_one_object_serves_batch_after_batch(name: str) -> None:
    """Each begins anew, with as many positions as it needs."""
    model = verifier(name)
    reused = CachedVerifier(model, PAD)
    for length, capacity in ((5, 5), (9, 30), (3, 4)):
        tokens = torch.randint(4, 24, (2, length))
        results = []
        for cached in (reused, CachedVerifier(model, PAD)):
            cached.start(encode(model, [6, 3], length), capacity)
            results.append(cached.score(tokens, torch.tensor([0, 0]), length)[0])
        assert torch.equal(*results)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"adaptive_softmax_cutoff": "8,16"}, "--adaptive-softmax-cutoff: not supported"),
    (
        {"cross_self_attention": True, "no_cross_attention": True},
        "--cross-self-attention: not supported",
    ),
    ({"cross_self_attention": True}, "--cross-self-attention: not supported"),
    ({"no_cross_attention": True}, "--no-cross-attention: not supported"),
    ({"scale_attn": True}, r"attn_ln \(NormFormer\): not supported"),
    ({"scale_fc": True}, r"ffn_layernorm \(NormFormer\): not supported"),
    ({"scale_heads": True}, r"c_attn \(NormFormer\): not supported"),
    ({"scale_resids": True}, r"w_resid \(NormFormer\): not supported"),
]


@pytest.mark.parametrize(("overrides", "message"), REFUSED)
def test_what_would_not_be_exact_is_refused_by_name(
    overrides: dict[str, Any], message: str
) -> None:
    model = make_verifier(**overrides)
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        CachedVerifier(model, PAD)
    assert "fairseq `transformer`" in str(caught.value)


def test_other_models_are_refused_by_name() -> None:
    args = Namespace(
        encoder_embed_dim=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_kernel_size_list=[3, 3],
        decoder_kernel_size_list=[3, 3],
        encoder_conv_type="lightweight",
        decoder_conv_type="lightweight",
        max_source_positions=32,
        max_target_positions=32,
    )
    for name in ("weight_dropout", "input_dropout", "relu_dropout", "attention_dropout"):
        setattr(args, name, 0.0)
    args.weight_softmax = True
    lightconv_architecture(args)
    model = LightConvModel.build_model(args, make_task())
    for refused, name in ((model, "LightConvModel"), (make_causal(), "BlockCausalDrafter")):
        with pytest.raises(UnsupportedModelError, match=f"{name}: not supported; .*transformer"):
            check_supported(refused)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_plain_transformer_is_supported(name: str) -> None:
    check_supported(verifier(name))
