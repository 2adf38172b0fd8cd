"""Chains: what is verified of them, and how."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from conftest import counts_of

from specdec_plugins.decoding.acceptance import SamplingRule, StrictRule, Verification
from specdec_plugins.decoding.acceptance.sampling import Proposal
from specdec_plugins.decoding.drafts import ChainDraft, DrawnDraft

EOS = 2
TOKENS = torch.tensor([[3, 4, 5], [4, 5, 3]])
SURE = torch.ones(2, 3)
CHOSEN = ChainDraft(TOKENS, [3, 2], torch.tensor([3, 2]), torch.zeros(2, 3, 1), torch.zeros(2, 0))
PROPOSAL = Proposal(TOKENS[..., None], SURE[..., None], SURE)
DRAWN = DrawnDraft(*vars(CHOSEN).values(), proposal=PROPOSAL)


def verify(best: list[list[int]]) -> Verification:
    sure = torch.nn.functional.one_hot(torch.tensor(best), 9).float()
    return Verification((1e4 * sure).log_softmax(-1), EOS)


@pytest.mark.parametrize(
    ("asked", "chosen", "drawn"),
    [
        ([3, 3], [3, 2], [3, 2]),
        ([1, 0], [1, 0], [2, 1]),
        # No more than is drafted.
        ([2, 2], [2, 2], [3, 2]),
        ([0, 0], [0, 0], [1, 1]),
    ],
)
def test_what_is_verified(asked: list[int], chosen: list[int], drawn: list[int]) -> None:
    """Of what was drawn one token more, at which a controller cuts: that it does depends on it.

    What was drafted remains what it was.
    """
    for draft, lengths in ((CHOSEN, chosen), (DRAWN, drawn)):
        cut = draft.cut(torch.tensor(asked))
        assert type(cut) is type(draft)
        assert cut.lengths.tolist() == lengths
        assert cut.tokens.tolist() == TOKENS[:, : max(lengths)].tolist()
        assert cut.drafted == [3, 2]


@pytest.mark.parametrize(("draft", "rule"), [(CHOSEN, StrictRule()), (DRAWN, SamplingRule())])
def test_acceptance_goes_as_far_as_each_rows_own_tokens(
    draft: ChainDraft, rule: StrictRule | SamplingRule
) -> None:
    verification = verify([[3, 4, 5, 6], [4, 5, 3, 6]])
    accepted = draft.accept(rule, verification)
    assert counts_of(accepted) == [[4, 3], [3, 2], [3, 2], [6, 3], [False, False]]
    # A draft that is cut is judged like a shorter one.
    cut = draft.cut(torch.tensor([1, 0]))
    ends = verify([[EOS] * (cut.tokens.size(1) + 1)] * 2)
    eos = replace(cut, tokens=torch.full_like(cut.tokens, EOS))
    if draft is CHOSEN:
        assert cut.accept(rule, verify([[3, 4], [4, 5]])).accepted == [1, 0]
        assert eos.accept(rule, ends).accepted == [1, 0]
    else:
        assert cut.accept(rule, verify([[3, 4, 5], [4, 5, 6]])).accepted == [2, 1]
        assert eos.accept(rule, ends).accepted == [1, 1]
