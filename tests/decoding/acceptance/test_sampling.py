"""What is drawn from, and the acceptance of what was drawn, with real random numbers.

That it keeps the verifier's distribution exactly is shown in ``test_exact_sampling.py``.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from conftest import make_dictionary
from fairseq.search import Sampling as StockSampling
from helpers.decoding.chi_square import p_value
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.decoding.acceptance import SamplingRule
from specdec_plugins.decoding.acceptance.sampling import (
    Proposal,
    draw,
    log_probabilities,
    speculative_sampling,
)
from specdec_plugins.decoding.limits import COLDEST


@given(
    seed=st.integers(0, 99),
    temperature=st.floats(COLDEST, 100.0),
    scale=st.sampled_from([1.0, 1000.0]),
)
def test_log_probabilities(seed: int, temperature: float, scale: float) -> None:
    """At any temperature."""
    generator = torch.Generator().manual_seed(seed)
    scores = scale * torch.randn(3, 7, generator=generator)
    expected = (scores.double() / temperature).log_softmax(-1)
    found = log_probabilities(scores, temperature)
    torch.testing.assert_close(found.exp().double(), expected.exp(), rtol=1e-3, atol=1e-5)
    assert torch.equal(log_probabilities(scores), scores.log_softmax(-1))


def random_lprobs(vocabulary: int, seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(*shape, vocabulary, generator=generator, dtype=torch.float64)
    return (2 * scores).log_softmax(-1)


@given(seed=st.integers(0, 99), topp=st.floats(0.01, 1.0), banned=st.booleans())
def test_top_p_is_fairseqs(seed: int, topp: float, banned: bool) -> None:
    """Also where something was forbidden after normalising."""
    lprobs = random_lprobs(9, seed, 3)
    if banned:
        lprobs[:, 4] = -math.inf
    stock = StockSampling(make_dictionary(5), sampling_topp=topp)
    trimmed, tokens = stock._sample_topp(lprobs[:, None].clone())
    expected = torch.zeros_like(lprobs).scatter_add(-1, tokens[:, 0], trimmed[:, 0])
    expected = expected / expected.sum(-1, keepdim=True)
    torch.testing.assert_close(SamplingRule(sampling_topp=topp).probabilities(lprobs), expected)


@given(
    seed=st.integers(0, 99), k=st.integers(1, 12), topp=st.floats(0.01, 0.99), banned=st.booleans()
)
def test_top_k_then_top_p_of_what_is_left(seed: int, k: int, topp: float, banned: bool) -> None:
    """Token by token; the same as each by itself after the other, as Transformers has them."""
    lprobs = random_lprobs(9, seed)
    if banned:
        lprobs[4] = -math.inf
    best = sorted(range(9), key=lambda token: -float(lprobs[token]))[:k]
    left = {token: math.exp(lprobs[token]) for token in best if lprobs[token] > -math.inf}
    total, kept, before = math.fsum(left.values()), {}, 0.0
    for token, p in left.items():
        if before < topp:
            kept[token] = p / total
        before += p / total
    expected = torch.zeros(9, dtype=torch.float64)
    for token, p in kept.items():
        expected[token] = p / math.fsum(kept.values())
    found = SamplingRule(k, topp).probabilities(lprobs)
    torch.testing.assert_close(found, expected)
    first = SamplingRule(sampling_topk=k).probabilities(lprobs)
    torch.testing.assert_close(found, SamplingRule(sampling_topp=topp).probabilities(first.log()))


@pytest.mark.parametrize("settings", [(), (0,), (-1, 0.0), (-3, -2.0)])
def test_what_stands_for_all(settings: tuple[Any, ...]) -> None:
    """As in fairseq."""
    lprobs = random_lprobs(7, 0, 2, 3)
    torch.testing.assert_close(SamplingRule(*settings).probabilities(lprobs), lprobs.exp())
    assert str(SamplingRule(*settings)) == "sampling"


def test_draw() -> None:
    """Of weights, which need not sum to one."""
    torch.manual_seed(0)
    weights = torch.tensor([[1.0, 0.0, 3.0], [0.0, 2.0, 0.0]])
    drawn = draw(weights.expand(4000, 2, 3))
    assert drawn.shape == (4000, 2)
    assert (drawn[:, 1] == 1).all()
    counts = drawn[:, 0].bincount(minlength=3)
    assert counts[1] == 0
    assert p_value(counts[[0, 2]], torch.tensor([1000.0, 3000.0])) > 1e-3


def test_rare_tokens_of_a_large_vocabulary_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each where the distribution function passes it: float32 would have no numbers for them."""
    lprobs = (4 * torch.randn(32000, generator=torch.Generator().manual_seed(0))).log_softmax(-1)
    probabilities = lprobs.exp()
    ends = probabilities.double().cumsum(-1)
    middles = (ends - probabilities.double() / 2) / ends[-1]
    monkeypatch.setattr(torch, "rand_like", lambda like: middles[:400, None].to(like.dtype))
    found = draw(probabilities.expand(32000, -1)[:400])
    assert found.tolist() == list(range(400))


def test_where_p_leaves_nothing_over_p_is_drawn_from() -> None:
    """All of p is below q by rounding alone: what is left must not be nothing."""
    p = torch.tensor([[[0.5, 0.5 - 1e-6]] * 2]).expand(2000, -1, -1)
    candidates = torch.arange(2).expand(2000, 1, 2)
    q = torch.tensor([0.5, 0.5]).expand(2000, 1, 2)
    proposal = Proposal(candidates, q, torch.ones(2000, 1))  # as if it were sure
    accepted, own = speculative_sampling(p, torch.ones(2000, 1).long(), proposal)
    assert 0 < int((accepted == 0).sum()) < 2000
    assert set(own[accepted == 0, 0].tolist()) == {0, 1}
