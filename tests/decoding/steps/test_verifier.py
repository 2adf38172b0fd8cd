"""Cached scoring of drafts is fairseq's full forward, whatever was scored before."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import examples, make_batch, make_verifier
from fairseq.models.transformer import TransformerModelBase
from helpers.decoding.whole_cache import WHOLE_CACHE
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specdec_plugins.decoding.steps.verifier import CachedVerifier, check_supported
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.engine import Engine
from specdec_plugins.files.errors import EngineError
from specdec_plugins.host.fairseq_types import EncoderOut
from specdec_plugins.models.rows import unfinished

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
    "quantisation noise": {"quant_noise_pq": 0.1},
    "gelu, 4 heads": {"activation_fn": "gelu", "decoder_attention_heads": 4},
    "unequal sides": {"encoder_embed_dim": 24, "encoder_layers": 1, "decoder_layers": 3},
}


pytestmark = pytest.mark.usefixtures("exact_softmax")


@cache
def verifier(name: str) -> TransformerModelBase:
    model = make_verifier(**VARIANTS[name])
    if name == "narrow table":
        model.decoder.embed_tokens = torch.nn.Embedding(24, 8, PAD, dtype=torch.float64)
        model.decoder.project_in_dim = torch.nn.Linear(8, 16, bias=False, dtype=torch.float64)
    return model


def encode(model: TransformerModelBase, lengths: list[int], seed: int) -> EncoderOut:
    return model.encoder(**make_batch(lengths, seed=seed)["net_input"])


def full(
    model: TransformerModelBase, encoder_out: EncoderOut, row: int, tokens: list[int]
) -> tuple[Tensor, Tensor]:
    """fairseq's logits and states of one row, ``tokens`` being everything after EOS."""
    previous = torch.tensor([[EOS, *tokens]])
    source = {
        "encoder_out": [encoder_out["encoder_out"][0][:, row : row + 1]],
        "encoder_padding_mask": [encoder_out["encoder_padding_mask"][0][row : row + 1]],
    }
    states, _ = model.decoder.extract_features(previous, encoder_out=source)
    return model.decoder(previous, encoder_out=source)[0][0], states[0]


def draw_trees(rows: int, nodes: int, branching: bool) -> tuple[list[list[list[int]]], Tensor]:
    """Of every row and node the nodes on its way from the root, itself the last; and which they
    are, ``(rows, nodes + 1, nodes + 1)``."""
    ways = [[[0]] for _ in range(rows)]
    for own in ways:
        for node in range(1, nodes + 1):
            parent = int(torch.randint(node, ())) if branching else node - 1
            own.append([*own[parent], node])
    seen = torch.zeros(rows, nodes + 1, nodes + 1, dtype=torch.bool)
    for row, own in enumerate(ways):
        for node, way in enumerate(own):
            seen[row, node, way] = True
    return ways, seen


def draft_of(tokens: Tensor, depths: Tensor, ancestors: Tensor) -> Any:
    """What is scored of a draft."""

    return SimpleNamespace(tokens=tokens, links=SimpleNamespace(depths=depths, ancestors=ancestors))


def leaves(ways: list[list[int]]) -> list[list[int]]:
    """The ways that no other goes on from."""
    return [way for way in ways if not any(way == other[: len(way)] != other for other in ways)]


@torch.no_grad()
@examples(80)
@given(
    name=st.sampled_from(sorted(VARIANTS)),
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    steps=st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from(["chains", "trees"])),
        min_size=1,
        max_size=5,
    ),
    together=st.booleans(),
    engine=st.sampled_from([EagerEngine("float64"), WHOLE_CACHE]),
    seed=st.integers(0, 999),
)
def test_ragged_scoring_is_the_full_forward(
    name: str,
    lengths: list[int],
    steps: list[tuple[int, str]],
    together: bool,
    engine: Engine,
    seed: int,
) -> None:
    """Of chains and trees. Rows commit one way of what was scored, or all together the first tokens
    of a chain; what they did not commit leaves no trace; and rows drop out at random."""
    model = verifier(name)
    encoder_out = encode(model, lengths, seed)
    torch.manual_seed(seed)
    cached = CachedVerifier(model, PAD, engine)
    cached.begin(encoder_out, capacity=40)
    rows = list(range(len(lengths)))
    committed: list[list[int]] = [[] for _ in rows]
    for nodes, kind in steps:
        branching = kind == "trees"
        ways, seen = draw_trees(len(rows), nodes, branching)
        counts = [len(committed[row]) for row in rows]
        draft = torch.randint(2, 24, (len(rows), nodes))
        last = torch.tensor([committed[row][-1] if committed[row] else EOS for row in rows])
        inputs = torch.cat([last[:, None], draft], dim=1)
        depths = torch.tensor([[len(way) - 1 for way in own] for own in ways])
        if not branching:
            depths, seen = depths[:1], seen[:1]
        scored = draft_of(draft, depths, seen)
        logits, states, normalisers = cached.score(last, scored, counts)
        torch.testing.assert_close(normalisers, logits.logsumexp(-1))
        for i, row in enumerate(rows):
            for way in leaves(ways[i]):
                tokens = committed[row] + inputs[i, way[1:]].tolist()
                for found, right in zip((logits, states), full(model, encoder_out, row, tokens)):
                    expected = right[-len(way) :]
                    torch.testing.assert_close(found[i, way], expected, atol=1e-9, rtol=1e-8)
        # Each row goes on by the way to one of its nodes, and by a token of the verifier's.
        ends = [int(torch.randint(len(own), ())) for own in ways]
        if together:
            ends = [min(ends)] * len(rows)
        taken = [own[end] for own, end in zip(ways, ends)]
        width = max(map(len, taken))
        sources = torch.tensor([way + [0] * (width - len(way)) for way in taken])
        cached.cache.write(sources, counts, [len(way) for way in taken])
        for i, row in enumerate(rows):
            committed[row] += [*inputs[i, taken[i][1:]].tolist(), int(torch.randint(4, 24, ()))]
        survivors = unfinished((torch.rand(len(rows)) < 0.2).tolist())
        if survivors and len(survivors) < len(rows):
            rows = [rows[i] for i in survivors]
            cached.select(survivors, max(len(committed[row]) for row in rows))


NORMS = {"attn": "attn_ln", "fc": "ffn_layernorm", "heads": "c_attn", "resids": "w_resid"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"adaptive_softmax_cutoff": "8,16"}, "--adaptive-softmax-cutoff"),
    ({"cross_self_attention": True}, "--cross-self-attention"),
    ({"no_cross_attention": True}, "--no-cross-attention"),
    *(({f"scale_{part}": True}, norm) for part, norm in NORMS.items()),
]


@pytest.mark.parametrize(("overrides", "named"), REFUSED)
def test_what_would_not_be_exact_is_refused_by_name(overrides: dict[str, Any], named: str) -> None:
    with pytest.raises(EngineError, match=named):
        CachedVerifier(make_verifier(**overrides), PAD)


@pytest.mark.parametrize("method", ["forward", "extract_features", "output_layer"])
def test_other_forward_passes_are_refused_by_name(method: str) -> None:
    """They are those of models that are no plain Transformers, though their classes inherit it."""
    model = make_verifier()
    for module in (model.decoder, model.decoder.layers[1]):
        stock = type(module)
        if hasattr(stock, method):
            module.__class__ = type("Other", (stock,), {method: lambda *given: None})
            with pytest.raises(EngineError, match="Other: has a forward pass of its"):
                check_supported(model)
        module.__class__ = type("Same", (stock,), {})
        check_supported(model)
