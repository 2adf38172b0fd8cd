"""What the acceptance rules commit of chains, against the published loop written out."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from conftest import counts_of, examples
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specdec_plugins.decoding.acceptance import (
    AcceptanceRule,
    RelaxedRule,
    SamplingRule,
    StrictRule,
    Verification,
    choose_rule,
)
from specdec_plugins.decoding.drafts import ChainDraft
from specdec_plugins.decoding.limits import COLDEST

INF = math.inf
EOS = 0
Step = tuple[Verification, Tensor]


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """Scores with ties and bans, and drafts that are mostly good."""
    rows, slots = draw(st.integers(1, 4)), draw(st.integers(0, 5))
    vocab = draw(st.integers(2, 9))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    # Few values, so that tokens tie.
    scores = torch.randint(-6, 3, (rows, slots + 1, vocab), generator=generator).double() / 2
    banned = torch.rand(scores.shape, generator=generator) < 0.2
    banned[..., 1] = False  # one token is always possible
    scores = scores.masked_fill(banned, -INF)
    near = scores[:, :-1].topk(min(3, vocab)).indices
    pick = torch.randint(0, near.size(-1), (rows, slots, 1), generator=generator)
    drafts = near.gather(-1, pick)[..., 0]
    wild = torch.randint(0, vocab, (rows, slots), generator=generator)
    is_wild = torch.rand(rows, slots, generator=generator) < 0.2
    eos = draw(st.sampled_from([EOS, -1]))
    verification = Verification(scores, eos, scores.new_zeros(rows, slots + 1))
    return verification, torch.where(is_wild, wild, drafts)


betas = st.integers(1, 9)
taus = st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0, 3.5, INF])


def a_rule(beta: int, tau: float) -> AcceptanceRule:
    return choose_rule({"beta": beta, "tau": tau})


def accept(rule: AcceptanceRule, step: Step) -> list[int]:
    """How many tokens are accepted of every row's draft, all of which is its own."""
    return rule.accept(chain(step[1]), step[0]).accepted


def chain(drafted: Tensor, lengths: list[int] | None = None) -> ChainDraft:
    draft = ChainDraft.of(drafted)
    return draft if lengths is None else replace(draft, drafted=lengths)


def reference(
    scores: list[list[float]],
    drafted: list[int],
    beta: int,
    tau: float,
    eos: int,
) -> tuple[list[int], int]:
    """What is committed, token by token, and how much of it was drafted."""
    tokens: list[int] = []
    for values, token in zip(scores, [*drafted, None]):
        own = values.index(max(values))
        good = token == own
        if beta > 1 and token is not None:
            better = sum(value > values[token] for value in values)
            possible = values[token] > -INF
            good = possible and better < beta and values[own] - values[token] <= tau
        tokens.append(token if good and token is not None else own)
        if not good or tokens[-1] == eos:
            return tokens, len(tokens) - (not good)
    raise AssertionError("after the draft comes the verifier's own token")


@examples(300)
@given(step=steps(), beta=betas, tau=taus, data=st.data())
def test_what_is_committed_is_that_of_the_loop(
    step: Step, beta: int, tau: float, data: st.DataObject
) -> None:
    """Of drafts of any lengths, up to EOS."""
    verification, drafted = step
    rows, slots = drafted.shape
    some = st.lists(st.integers(0, slots), min_size=rows, max_size=rows)
    lengths = data.draw(some)
    accepted = a_rule(beta, tau).accept(chain(drafted, lengths), verification)
    scores = verification.log_probabilities.tolist()
    for row, counts in enumerate(zip(*counts_of(accepted))):
        own, eos = drafted[row, : lengths[row]].tolist(), verification.eos
        tokens, count = reference(scores[row], own, beta, tau, eos)
        assert accepted.tokens[row, : len(tokens)].tolist() == tokens
        assert accepted.sources[row, : len(tokens)].tolist() == list(range(len(tokens)))
        assert counts == (len(tokens), count, lengths[row])


@examples(200)
@given(step=steps(), beta=betas, more=st.integers(0, 4), tau=taus, wider=taus)
def test_acceptance_is_monotone_in_beta_and_tau(
    step: Step, beta: int, more: int, tau: float, wider: float
) -> None:
    tight = accept(a_rule(beta, min(tau, wider)), step)
    loose = accept(a_rule(beta + more, max(tau, wider)), step)
    assert all(a <= b for a, b in zip(tight, loose))


def test_scores_are_normalised_as_they_were_before_anything_was_forbidden() -> None:
    """As in fairseq: what is left need not add up to one."""
    before = torch.randn(2, 3, 5, dtype=torch.float64)
    scores = before.clone()
    scores[..., 0], scores[..., 3] = -torch.inf, scores[..., 3] - 2
    verification = Verification(scores, EOS, before.logsumexp(-1))
    lprobs = before.log_softmax(-1)
    lprobs[..., 0], lprobs[..., 3] = -torch.inf, lprobs[..., 3] - 2
    torch.testing.assert_close(verification.log_probabilities, lprobs)
    tokens, sources = torch.tensor([[1, 0], [3, 2]]), torch.tensor([[0, 2], [1, 1]])
    expected = lprobs.gather(1, sources[..., None].expand(2, 2, 5)).gather(2, tokens[..., None])
    torch.testing.assert_close(verification.of(tokens, sources), expected[..., 0])
    assert verification.best.equal(lprobs.argmax(-1))


def test_a_probability_is_at_most_one() -> None:
    """With a negative --unkpen, of an unknown word that is likely already, too."""
    before = torch.tensor([[[0.0, 9.0, 0.0]]])
    scores = before + torch.tensor([0.0, 2.0, 0.0])
    verification = Verification(scores, EOS, before.logsumexp(-1))
    token, slot = torch.tensor([[1]]), torch.tensor([[0]])
    assert verification.of(token, slot) > 0
    assert StrictRule().probabilities_of(verification, token, slot) == 1


def test_drafts_are_drawn_at_any_temperature() -> None:
    """In a precision whose largest number is 65,504, too."""
    scores = torch.tensor([[3.0, 4.0, -2.0]], dtype=torch.float16)
    assert SamplingRule().propose(scores, COLDEST).tolist() == [[0.0, 1.0, 0.0]]


SAMPLED = {"sampling": True, "sampling_topk": -1, "sampling_topp": -1.0}


@pytest.mark.parametrize(
    ("given", "rule", "says"),
    [
        ({}, StrictRule(), "strict"),
        ({"beta": 1, "tau": 3.0}, StrictRule(), "strict"),
        ({"beta": 3, "tau": 1.0}, RelaxedRule(3, 1.0), "relaxed (beta 3, tau 1.0)"),
        (SAMPLED, SamplingRule(), "sampling"),
        ({"sampling": True, "sampling_topk": 3}, SamplingRule(3), "sampling (sampling_topk 3)"),
        (
            {"sampling": True, "sampling_topk": 3, "sampling_topp": 0.5},
            SamplingRule(3, 0.5),
            "sampling (sampling_topk 3, sampling_topp 0.5)",
        ),
    ],
)
def test_options_choose_a_rule(given: dict[str, object], rule: AcceptanceRule, says: str) -> None:
    """By name, or of a command line; its values and flags are what to give to have it again."""
    assert choose_rule(given) == choose_rule({**given, "other": "anything"}) == rule
    assert str(rule) == says
    assert choose_rule(rule.values) == rule
    assert (rule.draws, rule.lossless) == ("sampling" in given, given.get("beta", 1) == 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"beta": 0}, "--beta 0"),
        ({"tau": math.nan}, "--tau nan"),
        ({"sampling": True, "sampling_topp": 1.5}, "--sampling-topp 1.5"),
        ({"sampling_topk": 3}, "give --sampling too"),
        ({"sampling": True, "beta": 2}, r"--beta, --tau: go without --sampling"),
    ],
)
def test_impossible_rules_are_named(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choose_rule(given)
