"""What is committed of chains and of trees."""

from __future__ import annotations

import pytest
import torch

from specdec_plugins.decoding.acceptance import AcceptanceRule
from specdec_plugins.decoding.probabilities import Proposal, Sampling
from specdec_plugins.decoding.tree_source import TreeSource
from specdec_plugins.decoding.verdict import Verdict, judge
from specdec_plugins.models.lattice import Lattice

EOS, PAD, VOCABULARY = 2, 1, 9
LAST = 8


def scores_of(best: list[int]) -> torch.Tensor:
    """One row of scores by which these tokens are best."""
    return torch.nn.functional.one_hot(torch.tensor([best]), VOCABULARY).float().log_softmax(-1)


def committed(verdict: Verdict) -> list[int]:
    found: list[int] = verdict.tokens[0, : int(verdict.new)].tolist()
    return found


@pytest.mark.parametrize(
    ("best", "draft", "limit", "tokens", "accepted"),
    [
        ([3, 4, 5], [3, 4], None, [3, 4, 5], 2),
        ([3, 4, 5], [3, 6], None, [3, 4], 1),
        ([3, 4, 5], [6, 4], None, [3], 0),
        ([3, 4, 5], [3, 4], 1, [3, 4], 1),
        ([3, 4, 5], [3, 4], 0, [3], 0),
        ([7], [], None, [7], 0),
        # EOS in the draft, as the verifier's own, and in what is rejected.
        ([3, EOS, 5], [3, EOS], None, [3, EOS], 2),
        ([3, EOS, 5], [3, 4], None, [3, EOS], 1),
        ([3, 4, 5], [3, EOS], None, [3, 4], 1),
    ],
)
def test_a_chain(
    best: list[int], draft: list[int], limit: int | None, tokens: list[int], accepted: int
) -> None:
    limits = None if limit is None else torch.tensor([limit])
    inputs = torch.tensor([[LAST, *draft]])
    verdict = judge(AcceptanceRule(), scores_of(best), inputs, limits, EOS, None)
    assert committed(verdict) == tokens
    assert verdict.accepted.tolist() == [accepted]
    assert verdict.finished.tolist() == [int(tokens[-1] == EOS)]
    assert verdict.sources[: len(tokens)].tolist() == list(range(len(tokens)))
    assert verdict.known is None


@pytest.mark.parametrize(("room", "accepted"), [(0, 0), (1, 1), (2, 2), (5, 2), (None, 2)])
@pytest.mark.parametrize("sampling", [False, True])
def test_an_eos_that_the_limit_forces_is_not_accepted(
    room: int | None, accepted: int, sampling: bool
) -> None:
    """What is drawn for sure stands for sampling."""
    draft = [3, EOS] if room != 0 else [EOS, 5]
    scores = scores_of([*draft, 5]) * 1e4
    inputs, rooms = torch.tensor([[LAST, *draft]]), None if room is None else [room]
    rule, proposal = AcceptanceRule(), None
    if sampling:
        rule, sure = AcceptanceRule(sampling=Sampling()), torch.ones(1, 2)
        proposal = Proposal(inputs[:, 1:, None], sure[..., None], sure)
    verdict = judge(rule, scores, inputs, None, EOS, None, proposal, room=rooms)
    tokens = draft[: draft.index(EOS) + 1]
    assert committed(verdict) == tokens
    assert verdict.accepted.tolist() == [min(accepted, len(tokens))]
    assert verdict.finished.tolist() == [1]


@pytest.mark.parametrize(("room", "accepted"), [(1, 1), (2, 2), (None, 2)])
def test_an_eos_of_a_tree_that_the_limit_forces(room: int | None, accepted: int) -> None:
    candidates = torch.tensor([[[3, 4], [5, EOS]]])
    source = TreeSource(Lattice(candidates, torch.zeros(1, 2), torch.zeros(1, 1, 2, 2)), EOS, PAD)
    drafted, tree = source.grow(6)
    inputs = torch.cat([torch.tensor([[LAST]]), drafted], dim=1)
    after = {LAST: 4, 4: EOS}
    scores = scores_of([after.get(token, 0) for token in inputs[0].tolist()])
    rooms = None if room is None else [room]
    verdict = judge(AcceptanceRule(), scores, inputs, None, EOS, tree, room=rooms)
    assert committed(verdict) == [4, EOS]
    assert verdict.known == [[2], [accepted], [1]]
    assert inputs.gather(1, verdict.sources)[:, :2].tolist() == [[LAST, 4]]


def test_a_relaxed_chain() -> None:
    scores = scores_of([3, 4])
    scores[0, 0, 6] = scores[0, 0, 3] - 0.5
    inputs = torch.tensor([[LAST, 6]])
    verdict = judge(AcceptanceRule(2, 1.0), scores, inputs, None, EOS, None)
    assert committed(verdict) == [6, 4]


def test_a_tree() -> None:
    """What it says of the rows it says on the host too."""
    candidates = torch.tensor([[[3, 4], [5, 6]]])
    source = TreeSource(Lattice(candidates, torch.zeros(1, 2), torch.zeros(1, 1, 2, 2)), EOS, PAD)
    drafted, tree = source.grow(6)
    inputs = torch.cat([torch.tensor([[LAST]]), drafted], dim=1)
    # By what each token is, whatever its node: 4 after the root, 6 after 4, and then 7.
    after = {LAST: 4, 4: 6, 6: 7}
    scores = scores_of([after.get(token, 0) for token in inputs[0].tolist()])
    verdict = judge(AcceptanceRule(), scores, inputs, None, EOS, tree)
    assert committed(verdict) == [4, 6, 7]
    assert verdict.known == [[3], [2], [0]]
    assert [int(value) for value in (verdict.new, verdict.accepted, verdict.finished)] == [3, 2, 0]
    assert inputs.gather(1, verdict.sources).tolist() == [[LAST, 4, 6]]
