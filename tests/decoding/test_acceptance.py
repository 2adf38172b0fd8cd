"""The acceptance rules, against the published loop written out."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdec_plugins.decoding.acceptance import AcceptanceRule
from specdec_plugins.decoding.limits import COLDEST
from specdec_plugins.decoding.probabilities import Sampling

INF = math.inf


@st.composite
def steps(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Scores with ties and bans, greedy tokens, and drafts that are mostly good."""
    rows, slots = draw(st.integers(1, 4)), draw(st.integers(0, 5))
    vocab = draw(st.integers(2, 9))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    # Few values, so that tokens tie.
    scores = torch.randint(-6, 3, (rows, slots, vocab), generator=generator).double() / 2
    banned = torch.rand(scores.shape, generator=generator) < 0.2
    banned[..., 0] = False  # one token is always possible
    scores = scores.masked_fill(banned, -INF)
    best = scores.argmax(-1)
    near = scores.topk(min(3, vocab)).indices
    pick = torch.randint(0, near.size(-1), (rows, slots, 1), generator=generator)
    drafts = near.gather(-1, pick)[..., 0]
    wild = torch.randint(0, vocab, (rows, slots), generator=generator)
    return (
        scores,
        best,
        torch.where(torch.rand(rows, slots, generator=generator) < 0.2, wild, drafts),
    )


betas = st.integers(1, 9)
taus = st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0, 3.5, INF])


def reference(scores: Tensor, best: Tensor, draft: Tensor, beta: int, tau: float) -> list[int]:
    """Token by token until the first that is refused."""
    counts = []
    for row in range(len(draft)):
        count = 0
        for slot, token in enumerate(draft[row].tolist()):
            values = scores[row, slot].tolist()
            top = int(best[row, slot])
            if beta == 1:
                good = token == top
            else:
                better = sum(value > values[token] for value in values)
                possible = values[token] > -INF
                good = possible and better < beta and values[top] - values[token] <= tau
            if not good:
                break
            count += 1
        counts.append(count)
    return counts


@settings(max_examples=300)
@given(step=steps(), beta=betas, tau=taus)
def test_counts_are_those_of_the_loop(
    step: tuple[Tensor, Tensor, Tensor], beta: int, tau: float
) -> None:
    scores, best, draft = step
    found = AcceptanceRule(beta, tau).accepted(scores, best, draft)
    assert found.shape == (len(draft),)
    assert found.tolist() == reference(scores, best, draft, beta, tau)


@settings(max_examples=200)
@given(step=steps(), beta=betas, tau=taus, seed=st.integers(0, 99))
def test_tokens_are_judged_by_the_slots_that_they_come_after(
    step: tuple[Tensor, Tensor, Tensor], beta: int, tau: float, seed: int
) -> None:
    scores, best, draft = step
    torch.manual_seed(seed)
    rows, slots = best.shape
    after = torch.randint(slots, (rows, 2 * slots)) if slots else torch.zeros(rows, 0).long()
    drafted = draft.repeat(1, 2)
    found = AcceptanceRule(beta, tau).agrees(scores, best, drafted, after)
    assert found.shape == drafted.shape
    for row, (slot, token) in enumerate(zip(after, drafted)):
        for place, (one, tok) in enumerate(zip(slot, token)):
            alone = scores[row, one], best[row, one], tok
            part = [x[None, None] if x.dim() == 1 else x.view(1, 1) for x in alone]
            assert found[row, place] == AcceptanceRule(beta, tau).accepted(*part)[0]


def test_drafts_are_drawn_at_any_temperature() -> None:
    """In a precision whose largest number is 65,504, too."""
    propose = AcceptanceRule(sampling=Sampling()).proposer(COLDEST)
    assert propose is not None
    scores = torch.tensor([[3.0, 4.0, -2.0]], dtype=torch.float16)
    assert propose(scores).tolist() == [[0.0, 1.0, 0.0]]
    assert AcceptanceRule().proposer(1.0) is None


@settings(max_examples=200)
@given(step=steps(), beta=betas, more=st.integers(0, 4), tau=taus, wider=taus)
def test_acceptance_is_monotone_in_beta_and_tau(
    step: tuple[Tensor, Tensor, Tensor], beta: int, more: int, tau: float, wider: float
) -> None:
    tight = AcceptanceRule(beta, min(tau, wider)).accepted(*step)
    loose = AcceptanceRule(beta + more, max(tau, wider)).accepted(*step)
    assert bool((loose >= tight).all())


@settings(max_examples=200)
@given(step=steps(), beta=st.integers(2, 9))
def test_tau_zero_adds_exact_ties_and_nothing_else(
    step: tuple[Tensor, Tensor, Tensor], beta: int
) -> None:
    scores, best, draft = step
    found = AcceptanceRule(beta, 0.0).accepted(scores, best, draft)
    strict = AcceptanceRule().accepted(scores, best, draft)
    top = scores.gather(-1, best[..., None])
    tied = (scores.gather(-1, draft[..., None]) == top)[..., 0]
    assert torch.equal(found, tied.long().cumprod(-1).sum(-1))
    assert bool((found >= strict).all())
    # Without ties it is strict acceptance.
    unique = ((scores == top).sum(-1) == 1).all(-1)
    assert torch.equal(found[unique], strict[unique])


@given(step=steps(), tau=taus)
def test_strict_acceptance_knows_no_tau(step: tuple[Tensor, Tensor, Tensor], tau: float) -> None:
    scores, best, draft = step
    found = AcceptanceRule(1, tau).accepted(scores, best, draft)
    assert torch.equal(found, (draft == best).long().cumprod(-1).sum(-1))


def test_of_two_tied_tokens_strict_takes_the_greedy_one() -> None:
    scores = torch.tensor([[[1.0, 1.0, 0.0]], [[1.0, 1.0, 0.0]]])
    best, draft = torch.tensor([[0], [0]]), torch.tensor([[0], [1]])
    assert AcceptanceRule(1).accepted(scores, best, draft).tolist() == [1, 0]
    assert AcceptanceRule(2).accepted(scores, best, draft).tolist() == [1, 1]


@pytest.mark.parametrize("rule", [AcceptanceRule(100, INF), AcceptanceRule(3, 5.0)])
def test_a_forbidden_token_is_never_accepted(rule: AcceptanceRule) -> None:
    scores = torch.tensor([[[0.0, -INF, -1.0]]])
    for token, expected in ((0, 1), (1, 0), (2, 1)):
        assert rule.accepted(scores, torch.tensor([[0]]), torch.tensor([[token]])) == expected


def test_rank_and_gap_are_both_limits() -> None:
    scores = torch.tensor([[[0.0, -1.0, -2.0, -3.0]]])
    best = torch.tensor([[0]])

    def taken(beta: int, tau: float) -> list[int]:
        rule = AcceptanceRule(beta, tau)
        return [t for t in range(4) if rule.accepted(scores, best, torch.tensor([[t]])) == 1]

    assert taken(2, 9.0) == [0, 1]
    assert taken(3, 1.0) == [0, 1]
    assert taken(3, 0.99) == [0]
    assert taken(3, 2.0) == [0, 1, 2]
    assert taken(9, 2.5) == [0, 1, 2]


def test_nothing_drafted_is_nothing_accepted() -> None:
    empty = torch.empty(2, 0, dtype=torch.long)
    for rule in (AcceptanceRule(), AcceptanceRule(3, 1.0)):
        assert rule.accepted(torch.empty(2, 0, 5), empty, empty).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("beta", "tau", "message"),
    [
        (0, 0.0, r"--beta 0: must be between 1 \(strict\) and"),
        (-1, 0.0, "--beta -1: must be between 1"),
        (10**20, 0.0, f"--beta {10**20}: must be between 1"),
        (2, -0.5, r"--tau -0\.5: must be 0 or more"),
        (1, math.nan, "--tau nan: must be 0 or more"),
    ],
)
def test_impossible_rules_are_named(beta: int, tau: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AcceptanceRule(beta, tau)


def test_a_rule_says_what_it_is() -> None:
    assert str(AcceptanceRule()) == "strict"
    assert str(AcceptanceRule(3, 1.0)) == "relaxed (beta 3, tau 1.0)"
