"""With a repetition penalty, too, strict output is greedy: that of a loop written out here."""

from __future__ import annotations

import math

import pytest
import torch
from conftest import examples, make_batch
from helpers.decoding.controlled import VARIANTS, make_policy
from helpers.decoding.scripted import corrupted, scripted_generator
from helpers.decoding.strict import (
    DICTIONARY,
    EOS,
    PAD,
    UNK,
    one_row,
    verifier,
)
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specdec_plugins.decoding.controllers.simple import NoDrafts
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.host.fairseq_types import NetInput, Sample

pytestmark = [pytest.mark.usefixtures("exact_softmax"), pytest.mark.no_cover]

MOST = 14
PENALTIES = st.sampled_from([0.3, 0.9, 1.0, 1.2, 2.0, 30.0])


def penalise(scores: Tensor, tokens: list[int], penalty: float) -> Tensor:
    """As CTRL and Transformers say it, token by token."""
    scores = scores.clone()
    for token in set(tokens):
        score = float(scores[token])
        scores[token] = score / penalty if score > 0 else score * penalty
    return scores


@torch.no_grad()
def greedy(net_input: NetInput, limits: GenerationLimits) -> tuple[list[int], list[float]]:
    """Tokens and scores of one sentence, by a full forward pass a token."""
    tokens: list[int] = []
    found: list[float] = []
    while EOS not in tokens:
        previous = torch.tensor([[EOS, *tokens]])
        logits, _ = verifier()(**net_input, prev_output_tokens=previous)
        scores = penalise(logits[0, -1], tokens, limits.repetition_penalty)
        lprobs = (scores / limits.temperature).log_softmax(-1)
        lprobs[PAD] = -math.inf
        lprobs[UNK] -= limits.unkpen
        if len(tokens) < limits.min_len:
            lprobs[EOS] = -math.inf
        if len(tokens) >= limits.max_len_b:
            lprobs[torch.arange(len(lprobs)) != EOS] = -math.inf
        tokens.append(int(lprobs.argmax()))
        found.append(float(lprobs[tokens[-1]]))
    return tokens, found


def all_greedy(batch: Sample, limits: GenerationLimits) -> list[tuple[list[int], list[float]]]:
    rows = range(len(batch["id"]))
    return [greedy(one_row(batch, row)["net_input"], limits) for row in rows]


def assert_greedy(
    generator: SpeculativeGenerator, batch: Sample, expected: list[tuple[list[int], list[float]]]
) -> None:
    for (ours,), (tokens, scores) in zip(generator.generate([], batch), expected, strict=True):
        assert ours["tokens"].tolist() == tokens
        expected_scores = torch.tensor(scores, dtype=torch.float64)
        torch.testing.assert_close(ours["positional_scores"], expected_scores, atol=1e-9, rtol=1e-9)


@examples(60)
@given(
    name=st.sampled_from([*VARIANTS, "none"]),
    lengths=st.sampled_from([[6], [6, 2, 9, 1, 4]]),
    seed=st.integers(0, 99),
    k=st.integers(1, 6),
    corruption=st.sampled_from([0.0, 0.3, 1.0]),
    penalty=PENALTIES,
    temperature=st.sampled_from([0.6, 1.0]),
    unkpen=st.sampled_from([0.0, -2.0]),
    least=st.integers(0, 3),
    most=st.integers(3, MOST),
)
def test_what_a_script_drafts(
    name: str,
    lengths: list[int],
    seed: int,
    k: int,
    corruption: float,
    penalty: float,
    temperature: float,
    unkpen: float,
    least: int,
    most: int,
) -> None:
    """Drafts, right and wrong ones, of chains and trees, under every controller."""
    limits = GenerationLimits(
        max_len_b=most,
        min_len=least,
        unkpen=unkpen,
        temperature=temperature,
        repetition_penalty=penalty,
    )
    batch = make_batch(lengths, seed=seed)
    expected = all_greedy(batch, limits)
    right = [{"tokens": torch.tensor(tokens)} for tokens, _ in expected]
    script = corrupted(right, most + 1, corruption, len(DICTIONARY), seed)
    controller = NoDrafts() if name == "none" else make_policy(name, k)
    generator = scripted_generator(verifier(), script, controller, limits=limits)
    assert_greedy(generator, batch, expected)
