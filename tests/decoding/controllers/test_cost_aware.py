"""The cost model's choice, and what it learns."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scripted import make_path

from specdec_plugins.decoding.controllers import Bounds, Draft, Outcome
from specdec_plugins.decoding.controllers.cost_aware import CostAware, best_length
from specdec_plugins.decoding.cost_profile import StepCosts

K = 5
SENTENCE = 20
NEVER = torch.zeros(4, dtype=torch.bool)
SAMPLE = {"net_input": {"src_tokens": torch.zeros(4, 3)}}
probabilities = st.lists(st.floats(0, 1), min_size=1, max_size=6)


class Profile:
    """Costs by hand, the same for every batch size unless ``per_row`` says otherwise."""

    def __init__(self, draft: float, verify: float, per_row: float = 0.0) -> None:
        self.draft, self.verify, self.per_row = draft, verify, per_row
        self.asked: list[int] = []

    def costs(self, generator: Any, sample: dict[str, Any], most: int) -> StepCosts:
        rows = len(sample["net_input"]["src_tokens"])
        self.asked.append(rows)
        slots = torch.arange(most + 1.0)
        sizes = torch.arange(rows + 1.0)[:, None]
        verify = 1 + (self.verify + self.per_row * sizes) * slots
        return StepCosts((self.draft * slots).expand(rows + 1, -1), verify)


@given(
    accepted=probabilities,
    rises=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=6, max_size=6),
    least=st.integers(0, 1),
)
def test_best_by_brute_force(
    accepted: list[float], rises: list[tuple[float, float]], least: int
) -> None:
    """No pair of draft and verify lengths commits more a second than n = m = the choice."""
    k = len(accepted)
    survival = torch.tensor(accepted).cumprod(0)
    draft = torch.tensor([0.0, *(rise for rise, _ in rises[:k])]).cumsum(0)
    verify = 1 + torch.tensor([0.0, *(rise for _, rise in rises[:k])]).cumsum(0)
    chosen = int(best_length(survival, draft + verify, least))
    assert least <= chosen <= k

    def rate(n: int, m: int) -> float:
        return (1 + float(survival[:m].sum())) / float(draft[n] + verify[m])

    best = max(rate(n, m) for n in range(least, k + 1) for m in range(least, n + 1))
    assert rate(chosen, chosen) == pytest.approx(best, rel=1e-5)


def test_every_batch_size_has_its_own() -> None:
    seconds = torch.tensor([[1.0, 1.1, 1.2], [1.0, 1.2, 3.0], [1.0, 2.0, 3.0]])
    assert best_length(torch.tensor([0.8, 0.6]), seconds).tolist() == [2, 1, 0]


def start(profile: Profile, rows: int = 4, **settings: Any) -> CostAware:
    controller = CostAware(Bounds(settings.pop("least", 0), K), profile, **settings)
    controller.prepare(None, SAMPLE)
    controller.start(torch.zeros(rows).long())
    return controller


def run(controller: CostAware, accepting: list[int], steps: int, rows: int = 4) -> list[int]:
    """Take steps of which each accepts at most so many slots, in turn; the lengths drafted."""
    seen = []
    for step in range(steps):
        if step % SENTENCE == 0:
            controller.prepare(None, SAMPLE)
            started = controller.start(torch.zeros(rows).long())
            coasts = started is None
            lengths = torch.full((rows,), controller.length) if started is None else started
        seen.append(int(lengths[0]))
        if coasts:
            continue
        assert (lengths == lengths[0]).all()
        accepted = lengths.clamp(max=accepting[step % len(accepting)])
        found = controller.draft_lengths(
            Outcome(lengths, lengths, accepted, accepted < lengths, NEVER, accepted + 1)
        )
        assert found is not None
        lengths = found
    return seen


def test_where_it_never_pays_it_draws_back_and_looks_seldom() -> None:
    controller = start(Profile(draft=0.3, verify=0.3))
    seen = run(controller, [0], 12000)
    assert seen[0] > 0
    settled = seen[50:]
    part = sum(length > 0 for length in settled) / len(settled)
    # A whole block costs 4 and commits 1: half a percent of the time pays for one step in 600.
    assert 0 < part < 0.005


def test_total_cost_is_near_plain_decoding_where_drafting_never_pays() -> None:
    profile = Profile(draft=0.3, verify=0.3)
    seen = run(start(profile), [0], 4000)
    spent = sum(1 + 0.6 * length for length in seen)
    assert spent / len(seen) < 1.03


def test_where_it_always_pays_it_drafts_all() -> None:
    assert set(run(start(Profile(0.01, 0.01)), [K], 200)) == {K}


def test_it_settles_on_what_is_accepted() -> None:
    seen = run(start(Profile(0.1, 0.1)), [2], 2000)
    assert max(set(seen[200:]), key=seen[200:].count) == 2


def test_it_notices_an_easier_text() -> None:
    controller = start(Profile(0.15, 0.15))
    assert run(controller, [0], 500)[-1] == 0
    assert K in run(controller, [K], 6000)[-100:]


def test_the_prior_gives_way() -> None:
    """A few steps of four rows are enough to stop drafting what is never accepted."""
    assert run(start(Profile(0.3, 0.3)), [0], 30)[-1] == 0


def looks(controller: CostAware, accepting: int, batches: int, rows: int = 4) -> list[bool]:
    """Which of so many batches, of a step each, do not coast."""
    seen = []
    for _ in range(batches):
        controller.prepare(None, SAMPLE)
        lengths = controller.start(torch.zeros(rows).long())
        seen.append(lengths is not None)
        if lengths is not None:
            found = lengths.clamp(max=accepting)
            controller.draft_lengths(
                Outcome(lengths, lengths, found, found < lengths, NEVER[:rows], found + 1)
            )
    return seen


def test_settled_on_drafts_most_batches_coast() -> None:
    controller = start(Profile(0.01, 0.01))
    run(controller, [K], 20 * SENTENCE)
    looked = looks(controller, K, 4 * (controller.COASTING + 1))
    assert sum(looked) == 4
    assert controller.length == K


def test_settled_on_none_a_batch_of_drafts_is_saved_for() -> None:
    controller = start(Profile(0.3, 0.3))
    run(controller, [0], 20 * SENTENCE)
    looked = looks(controller, 0, 2 * controller.REST)
    assert 1 <= sum(looked) <= 5
    controller._coasting, controller._coasts = False, 0
    assert looks(controller, 0, 1) == [False]
    assert controller.length == 0


def test_what_is_in_vain_is_done_less_and_less() -> None:
    """Batches between one of whole blocks and the next, until the share is as small as it gets."""
    controller = start(Profile(0.1, 0.1))
    explored = [i for i, length in enumerate(run(controller, [0], 300000)[::SENTENCE]) if length]
    pauses = [b - a for a, b in pairwise(explored[1:])]
    assert len(pauses) >= 5
    assert pauses[0] < pauses[2] < pauses[4]
    assert max(pauses) < 3 * controller.DOUBT * pauses[0]


def test_a_batch_that_coasts_has_the_length_of_its_size() -> None:
    controller = start(Profile(0.0, 0.0, per_row=0.1))
    run(controller, [1, 3], 30 * SENTENCE)
    assert controller._choices is not None
    lengths = controller._choices.tolist()
    assert len(set(lengths[1:])) > 1
    assert lengths[4] > 0
    while looks(controller, 3, 1) == [True]:
        pass
    assert controller.length == lengths[4]
    controller.keep(torch.tensor([0, 2]))
    assert controller.length == lengths[2]
    controller.keep(torch.tensor([1]))
    assert controller.length == lengths[1]


def test_a_batch_that_coasts_without_drafts_has_none_to_the_end() -> None:
    controller = start(Profile(0.0, 0.0, per_row=0.3))
    run(controller, [1, 3], 100)
    assert controller._choices is not None
    assert int(controller._choices[1]) > 0
    while looks(controller, 0, 1) == [True]:
        pass
    controller.keep(torch.tensor([0]))
    assert controller.length == 0


def test_first_choices_are_kept_for_a_short_time() -> None:
    looked = looks(start(Profile(0.01, 0.01)), K, 45)
    places = [i for i, look in enumerate(looked) if look]
    assert [b - a for a, b in pairwise(places)] == [3, 4, 5, 6, 7, 8, 8]


def test_a_smaller_batch_has_other_costs() -> None:
    controller = start(Profile(0.0, 0.0, per_row=0.3))
    run(controller, [1, 3], 100)
    controller._coasting = False
    alone, together = (controller.start(torch.zeros(rows).long()) for rows in (1, 4))
    assert alone is not None
    assert int(alone[0]) > 0
    assert together is not None
    assert int(together[0]) == 0
    controller.keep(torch.tensor([2]))
    drafted = torch.tensor([0])
    found = controller.draft_lengths(
        Outcome(drafted, drafted, drafted, NEVER[:1], NEVER[:1], drafted + 1)
    )
    assert found is not None
    # But not so late: this batch began without drafts.
    assert found.tolist() == [0]


def test_plain_from_the_beginning_it_explores_all_the_same() -> None:
    """By the prior drafts do not pay; all are accepted."""
    controller = start(Profile(draft=0.4, verify=0.4))
    assert int(controller._choices[4]) == 0  # type: ignore[index]
    seen = run(controller, [K], 40000)
    assert seen[0] == 0
    assert K in seen
    # (1 + K) tokens of a whole block cost 1 + 0.8 K = 5.
    assert seen[-1] == K


def test_exploring_is_paid_by_batches_of_its_own_size() -> None:
    """Batches end with one row, for which whole blocks are best; for all four they never pay."""
    controller = start(Profile(0.0, 0.0, per_row=0.2))
    for _ in range(400):
        controller.prepare(None, SAMPLE)
        lengths = controller.start(torch.zeros(4).long())
        for rows in (4, 1):
            if lengths is None:
                break
            controller.keep(torch.arange(rows))
            lengths = lengths[:rows]
            zeros = torch.zeros_like(lengths)
            lengths = controller.draft_lengths(
                Outcome(lengths, lengths, zeros, lengths > 0, NEVER[:rows], zeros + 1)
            )
    assert int(controller._choices[4]) == 0  # type: ignore[index]
    # Now all is accepted: it must find that out.
    assert K in run(controller, [K], 200000)[-SENTENCE:]


def test_what_plain_batches_may_coast_others_may_not() -> None:
    controller = start(Profile(0.0, 0.0, per_row=0.3))
    run(controller, [1, 3], 100)
    assert controller._choices is not None
    assert int(controller._choices[4]) == 0
    assert int(controller._choices[1]) > 0
    while looks(controller, 0, 1) == [True]:
        pass
    assert controller._coasts > controller.COASTING
    controller.prepare(None, {"net_input": {"src_tokens": torch.zeros(1, 3)}})
    assert controller.start(torch.zeros(1).long()) is not None


def test_bounds() -> None:
    assert set(run(start(Profile(0.5, 0.5), least=2), [0], 50)[10:]) <= {2, K}


def test_costs_are_asked_for_once_for_a_size() -> None:
    profile = Profile(0.1, 0.1)
    controller = start(profile)
    controller.prepare(None, {"net_input": {"src_tokens": torch.zeros(2, 3)}})
    assert profile.asked == [4]
    controller.prepare(None, {"net_input": {"src_tokens": torch.zeros(9, 3)}})
    assert profile.asked == [4, 9]
    started = controller.start(torch.zeros(9).long())
    assert started is not None
    assert started.shape == (9,)


def test_a_head_cuts_what_does_not_pay() -> None:
    def head(states: torch.Tensor, probabilities: torch.Tensor) -> torch.Tensor:
        return probabilities

    controller = start(Profile(0.0, 0.2), head=head)
    assert controller.cuts
    rows = torch.tensor([[0.9, 0.9, 0.1, 0.9, 0.9]]).expand(4, -1)
    draft = Draft(torch.zeros(4, K).long(), torch.zeros(4, K, 1), rows)
    drafted = torch.full((4,), K)
    # (1 + 0.9 + 0.81) / 1.4 is more than with one slot less (1.58) or more (1.74).
    assert controller.verify_lengths(draft, drafted).tolist() == [2] * 4
    assert controller.verify_lengths(draft, torch.tensor([0, 1, 2, 5])).tolist() == [0, 1, 2, 2]


def grown(accepted: int, left_over: bool = False) -> Outcome:
    """Four rows, of each of which the first nodes of a tree were accepted."""
    many = torch.full((4,), accepted)
    nodes = torch.arange(accepted + 1).expand(4, -1)
    lengths = torch.full((4,), K)
    path = make_path(nodes, many)
    return Outcome(lengths, lengths, many, many < K, NEVER, many + 1, path, left_over)


def test_what_is_left_of_a_tree_must_be_worth_a_verifiers_pass() -> None:
    controller = start(Profile(draft=0.2, verify=0.1), depth=3)
    # The host knows nothing before it has looked back.
    assert all(controller.redrafts([9.0] * 4))
    for _ in range(400):
        controller.draft_lengths(grown(2))
    controller.prepare(None, SAMPLE)
    controller._coasting = False
    controller.start(torch.zeros(4).long())
    # Two nodes are accepted at every step: 3 tokens in 1.6 s. A pass of 1.2 s is worth 2.25, one of
    # them the verifier's; and of what is promised, 70 % is taken to be kept.
    enough = (3 / 1.6 * 1.2 - 1) / 0.7
    assert all(controller.redrafts([enough * 0.97] * 4))
    assert not any(controller.redrafts([enough * 1.03] * 4))
    assert not any(controller.redrafts([0.0, 0.0, 0.0, 4.12 * enough]))


def settled(profile: Profile, accepted: int) -> CostAware:
    controller = start(profile, depth=3)
    for _ in range(400):
        controller.draft_lengths(grown(accepted))
    return controller


def keep_promises(controller: CostAware, promised: float, accepted: int, steps: int) -> None:
    for _ in range(steps):
        controller.redrafts([promised] * 4)
        controller.draft_lengths(grown(accepted, left_over=True))


def test_promises_are_held_against_what_was_kept() -> None:
    controller = settled(Profile(draft=0.2, verify=0.1), accepted=2)
    before = controller._averages.survival()  # type: ignore[union-attr]
    keep_promises(controller, 4.0, 1, 800)
    # What whole drafts are worth is not judged by what is left of them.
    assert torch.equal(controller._averages.survival(), before)  # type: ignore[union-attr]
    controller.prepare(None, SAMPLE)
    # A quarter is kept: of 32 steps' promises a period, and 0.98 of what was there before it.
    fading = controller.FADING
    many = controller.PERIOD * 4 * fading / (1 - fading)
    enough = (3 / 1.6 * 1.2 - 1) * (200 + 4 * many) / (140 + many)
    assert all(controller.redrafts([enough * 0.97] * 4))
    assert not any(controller.redrafts([enough * 1.03] * 4))


def test_broken_promises_are_forgiven() -> None:
    controller = settled(Profile(draft=0.2, verify=0.1), accepted=2)
    keep_promises(controller, 4.0, 0, 400)
    controller.prepare(None, SAMPLE)
    assert all(controller.redrafts([float(K)] * 4))
    for _ in range(4000):
        controller.draft_lengths(grown(2))
    controller._look_back(4)
    assert not any(controller.redrafts([2.0] * 4))


def test_nothing_that_is_left_will_do_where_only_learning_drafts() -> None:
    controller = settled(Profile(draft=0.9, verify=0.9), accepted=0)
    controller._look_back(4)
    assert controller._known[4] == 0
    assert all(controller.redrafts([float(K)] * 4))


def test_what_is_enough_is_not_known_of_a_larger_batch() -> None:
    controller = settled(Profile(draft=0.2, verify=0.1), accepted=2)
    controller.prepare(None, SAMPLE)
    controller.start(torch.zeros(4).long())
    assert not any(controller.redrafts([float(K)] * 4))
    controller.prepare(None, {"net_input": {"src_tokens": torch.zeros(9, 3)}})
    controller.start(torch.zeros(9).long())
    assert all(controller.redrafts([float(K)] * 9))
