"""The cost model's choice, and what it learns."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from scripted import make_result

from specdec_plugins.decoding.controllers import Bounds
from specdec_plugins.decoding.controllers.base import Needs
from specdec_plugins.decoding.controllers.cost_aware import CostAware
from specdec_plugins.decoding.controllers.costs import StepCosts
from specdec_plugins.decoding.step_result import StepResult

K = 5
SENTENCE = 20


def make_costs(draft: float, verify: float, per_row: float = 0.0, rows: int = 4) -> StepCosts:
    """Seconds of so much a slot, of which verifying may have some for every row."""
    slots, sizes = np.arange(K + 1.0), np.arange(rows + 1.0)[:, None]
    verified = 1 + (verify + per_row * sizes) * slots
    return StepCosts(np.broadcast_to(draft * slots, verified.shape), verified)


def make(draft: float, verify: float, per_row: float = 0.0, least: int = 0) -> CostAware:
    controller = CostAware(Bounds(least, K), depth=3)
    controller.learn_costs(make_costs(draft, verify, per_row))
    return controller


@cache
def step(accepted: int, length: int, rows: int, last: bool = False) -> StepResult:
    """A step that accepts the same of all rows; of the last one of sentences all end."""
    finished = tuple(range(rows)) if last else ()
    lengths = [SENTENCE] * rows
    return make_result([accepted] * rows, [length] * rows, finished=finished, lengths=lengths)


def run(controller: CostAware, accepting: list[int], steps: int, rows: int = 4) -> list[int]:
    """Decode batches of which each step accepts at most so many slots, in turn; the lengths."""
    seen: list[int] = []
    while len(seen) < steps:
        lengths = controller.start(rows)
        for place in range(SENTENCE):
            (length,) = set(lengths)
            seen.append(length)
            accepted = min(length, accepting[len(seen) % len(accepting)])
            lengths = controller.observe(step(accepted, length, rows, place == SENTENCE - 1))
            assert len(lengths) == rows
    return seen


def begin(controller: CostAware, rows: int) -> list[int]:
    """Begin batches until there is no time left to explore with them."""
    lengths = controller.start(rows)
    while controller._exploring:
        lengths = controller.start(rows)
    return lengths


@given(
    rises=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=K, max_size=K),
    least=st.integers(0, 1),
)
def test_best_by_brute_force(rises: list[tuple[float, float]], least: int) -> None:
    """Before anything is known, no pair of draft and verify lengths commits more a second than the
    best length drafted and verified."""
    gains = 0.8 ** np.arange(1.0, K + 1)
    draft, verify = (np.array([0.0, *part]).cumsum() for part in zip(*rises))

    def rate(n: int, m: int) -> float:
        return float((1 + gains[:m].sum()) / (draft[n] + 1 + verify[m]))

    controller = CostAware(Bounds(least, K), depth=3)
    controller.learn_costs(StepCosts(*(np.tile(costs, (2, 1)) for costs in (draft, 1 + verify))))
    (length,) = begin(controller, 1)
    best = max(rate(n, m) for n in range(least, K + 1) for m in range(least, n + 1))
    assert rate(length, length) == pytest.approx(best)


class TestChoice:
    def test_where_it_always_pays_it_drafts_all(self) -> None:
        assert set(run(make(0.01, 0.01), [K], 200)) == {K}

    def test_it_settles_on_what_is_accepted(self) -> None:
        seen = run(make(0.1, 0.1), [2], 2000)[200:]
        assert seen.count(2) > 0.95 * len(seen)

    def test_the_prior_gives_way(self) -> None:
        """A few steps of four rows are enough to stop drafting what is never accepted."""
        seen = run(make(0.3, 0.3), [0], 30)
        assert seen[0] > 0
        assert seen[-1] == 0

    def test_batch_sizes_have_their_own(self) -> None:
        controller = make(0.0, 0.0, per_row=0.1)
        run(controller, [1, 3], 600)
        lengths = [set(begin(controller, rows)) for rows in (1, 2, 3, 4)]
        assert all(len(found) == 1 for found in lengths)
        found = [length for (length,) in lengths]
        assert found == sorted(found, reverse=True)
        assert found[0] > found[3] > 0
        # A smaller batch has other costs: rows that leave change the length of the others.
        begin(controller, 4)
        assert set(controller.observe(step(1, found[3], 4))) == {found[3]}
        leaving = make_result([1] * 4, [found[3]] * 4, finished=(0, 2, 3))
        assert controller.observe(leaving)[1] == found[0]

    def test_a_batch_that_begins_without_drafts_has_none_to_the_end(self) -> None:
        """Though it comes to a size for which they pay."""
        controller = make(0.0, 0.0, per_row=0.3)
        run(controller, [1, 3], 100)
        assert controller.start(1) > [0]
        assert begin(controller, 4) == [0] * 4
        assert controller.observe(make_result([0] * 4, [0] * 4, finished=(0, 1, 3))) == [0] * 4
        assert controller.observe(make_result([0], [0])) == [0]
        assert controller.start(1) > [0]

    def test_costs_that_are_told_anew(self) -> None:
        """As of a larger batch: what was learned stays."""
        controller = make(0.1, 0.1)
        run(controller, [2], 400)
        assert begin(controller, 4) == [2] * 4
        controller.learn_costs(make_costs(0.1, 0.1, rows=9))
        assert begin(controller, 9) == [2] * 9
        controller.learn_costs(make_costs(0.9, 0.9))
        assert begin(controller, 4) == [0] * 4

    @examples(30)
    @given(
        least=st.integers(0, K),
        slopes=st.tuples(*[st.floats(0, 1)] * 3),
        accepting=st.lists(st.integers(0, K), min_size=1, max_size=9),
    )
    def test_bounds(
        self, least: int, slopes: tuple[float, float, float], accepting: list[int]
    ) -> None:
        controller = make(*slopes, least=least)
        assert controller.needs == Needs(K, 3)
        assert set(run(controller, accepting, 100)) <= set(range(least, K + 1))


class TestExploration:
    @pytest.mark.parametrize("rows", [1, 4])
    def test_it_takes_its_share_of_the_time(self, rows: int) -> None:
        """Where drafts never pay: a whole block costs 2, and commits 1 as a step of 1 does."""
        controller = make(draft=0.1, verify=0.1)
        run(controller, [0], 8000, rows)
        seen = run(controller, [0], 24000, rows)
        assert set(seen) == {0, K}
        extra = seen.count(K) / (len(seen) + seen.count(K))
        assert extra == pytest.approx(controller.EXPLORATION, rel=0.25)
        # In whole batches.
        starts = seen[::SENTENCE]
        assert seen == [length for length in starts for _ in range(SENTENCE)]

    @pytest.mark.parametrize("cost", [0.15, 0.3])
    def test_all_that_it_tries_is_near_plain_decoding(self, cost: float) -> None:
        seen = run(make(cost, cost), [0], 4000)
        assert sum(1 + 2 * cost * length for length in seen) / len(seen) < 1.03

    def test_it_notices_an_easier_text(self) -> None:
        controller = make(0.15, 0.15)
        assert run(controller, [0], 500)[-1] == 0
        assert K in run(controller, [K], 20000)[-100:]

    def test_plain_from_the_beginning_it_explores_all_the_same(self) -> None:
        """By the prior drafts do not pay; all are accepted, and (1 + K) tokens cost 1 + 0.84 K."""
        controller = make(draft=0.42, verify=0.42)
        assert begin(controller, 4) == [0] * 4
        assert run(controller, [K], 20000)[-1] == K

    @pytest.mark.parametrize("rows", [1, 4])
    def test_at_the_beginning_it_may_lose_a_quarter_of_a_batch(self, rows: int) -> None:
        controller = make(draft=0.2, verify=0.15)
        first = [set(controller.start(rows)) for _ in range(8)]
        explored = first.index({3})
        assert first == [{K}] * explored + [{3}] * (8 - explored)
        # By the prior 2.95 tokens in 2.05 s, 3.69 in 2.75 s with whole blocks.
        tokens = [1 + sum(0.8**slot for slot in range(1, length + 1)) for length in (3, K)]
        batch, whole = 2.05 / tokens[0], 2.75 / tokens[1]
        assert explored == int(batch / 4 / (whole - batch)) > 0

    def test_it_does_not_begin_with_what_is_far_from_the_best(self) -> None:
        assert set(run(make(draft=0.6, verify=0.3), [0], SENTENCE)) == {0}

    def test_exploring_is_paid_by_batches_of_its_own_size(self) -> None:
        """They end with one row, for which whole blocks are best; for all four they never pay."""
        controller = make(0.0, 0.0, per_row=0.2)
        leaving = make_result([0] * 4, [K] * 4, finished=(0, 1, 2))
        for _ in range(400):
            controller.start(4)
            controller.observe(leaving)
            controller.observe(step(0, K, 1))
        assert begin(controller, 4) == [0] * 4
        # Now all is accepted: it must find that out.
        assert K in run(controller, [K], 24000)[-SENTENCE:]


def settled(draft: float = 0.2, verify: float = 0.1) -> CostAware:
    """Of whose trees two nodes are accepted at every step."""
    controller = make(draft, verify)
    for _ in range(20):
        controller.start(4)
        for _ in range(SENTENCE):
            controller.observe(step(2, K, 4))
    return controller


def reuse(controller: CostAware, expected: float, accepted: int, steps: int) -> None:
    """Steps of what was left of drafts that promised so much."""
    result = make_result(
        [accepted] * 4, [K] * 4, called=[False] * 4, expected=[expected] * 4, lengths=[SENTENCE] * 4
    )
    for _ in range(steps):
        controller.observe(result)


# 3 tokens in 1.6 s. A pass of 1.2 s is worth 2.25, one of them the verifier's.
WORTH = 3 / 1.6 * 1.2 - 1


class TestReuse:
    def test_it_must_be_worth_a_verifiers_pass(self) -> None:
        """Of what is promised, 70 % is taken to be kept."""
        assert settled().reuse_above == pytest.approx(WORTH / 0.7, rel=0.02)

    def test_promises_are_held_against_what_was_kept(self) -> None:
        broken, kept = settled(), settled()
        reuse(broken, 4.0, 1, 800)
        reuse(kept, 1.0, 1, 800)
        # Of 32 steps' promises a period, and 0.98 of what was there before it.
        many = CostAware.PERIOD * 4 * CostAware.FADING / (1 - CostAware.FADING)
        held_against = (200 + 4 * many) / (200 + many)
        assert broken.reuse_above / kept.reuse_above == pytest.approx(held_against, rel=0.02)
        # What whole drafts are worth is not judged by promises.
        assert begin(broken, 4) == begin(kept, 4)
        assert begin(settled(), 4) == [2] * 4

    def test_drafts_cost_less_where_every_other_step_verifies_what_is_left_of_one(self) -> None:
        controllers = [make(0.75, 0.2, least=1) for _ in range(2)]
        for place in range(2000):
            for controller, reuses in zip(controllers, (False, True)):
                controller.start(4)
                new = [not (reuses and place % 2)] * 4
                controller.observe(make_result([1] * 4, [1] * 4, called=new, nodes=[[1]] * 4))
        # Two tokens in 1.95 s, or in 1.575; without drafts one a second.
        rates = [controller._rates()[0][4, 1] for controller in controllers]
        assert rates == pytest.approx([2 / 1.95, 2 / 1.575], rel=0.05)

    def test_of_steps_without_a_draft_nothing_is_learned(self) -> None:
        """In a batch that began with some."""
        controller = make(0.75, 0.2, least=1)
        controller.start(4)
        for _ in range(20):
            controller.observe(make_result([0] * 4, [0] * 4, called=[False] * 4, nodes=[[]] * 4))
        assert not controller._tried.any()

    def test_broken_promises_are_forgiven(self) -> None:
        controller = settled()
        reuse(controller, 4.0, 0, 400)
        assert controller.reuse_above > K
        for _ in range(4000):
            controller.observe(step(2, K, 4))
        assert controller.reuse_above == pytest.approx(WORTH / 0.7, rel=0.02)

    def test_an_end_is_no_gain(self) -> None:
        """An accepted EOS would be the bonus token without it."""
        ends, shorter = settled(), settled()
        many = {"called": [False] * 4, "expected": [2.0] * 4, "lengths": [SENTENCE] * 4}
        for _ in range(400):
            ends.observe(make_result([2] * 4, [K] * 4, ended=(0, 1, 2, 3), **many))
            shorter.observe(make_result([1] * 4, [K] * 4, finished=(0, 1, 2, 3), **many))
        assert begin(ends, 4) == begin(shorter, 4)
        assert ends.reuse_above == shorter.reuse_above

    @pytest.mark.parametrize("reuses", [False, True])
    def test_what_a_length_brings_is_found_out_by_trying(self, reuses: bool) -> None:
        """Of new drafts two tokens are accepted, by any of these lengths: 3 in 1.24 s are more than
        in 1.6 s, but not than in 1.15 s, where nine of ten whole blocks need no pass of the
        drafter."""
        controller = make(0.1, 0.02)
        for _ in range(100):
            (length,) = set(controller.start(4))
            for place in range(SENTENCE):
                called = not reuses or length < K or place % 10 == 0
                accepted = min(length, 2)
                given = [accepted] * 4, [length] * 4
                expected = [0.0 if called else 3.0] * 4
                result = make_result(*given, called=[called] * 4, expected=expected)
                (length,) = set(controller.observe(result))
        assert begin(controller, 4) == [K if reuses else 2] * 4
