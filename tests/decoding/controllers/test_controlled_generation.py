"""Strict output is the verifier's greedy output, whatever the controller decides."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from conftest import examples, make_batch
from helpers.decoding.controlled import (
    DRAFTERS,
    VARIANTS,
    K,
    make_generator,
    make_policy,
    verifier,
    verifier_for,
)
from helpers.decoding.scripted import DICTIONARY, corrupted, scripted_generator, traced
from helpers.decoding.shared_sessions import NAMES as ENGINES
from helpers.decoding.shared_sessions import TIES, engine_of
from helpers.decoding.strict import assert_same_words, beam1, one_row
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.decoding.acceptance import RelaxedRule
from specdec_plugins.decoding.controllers.base import Controller
from specdec_plugins.decoding.controllers.simple import Tree
from specdec_plugins.decoding.drafts import Draft
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.step_result import Hypothesis, StepResult, StepTrace
from specdec_plugins.host.fairseq_types import Sample


class RandomController(Controller):
    """Any lengths within the bounds, drawn for every step and row; checks what it is told.

    Where drafts are trees, any of them may be reused.
    """

    name = "random"

    max_length = 0

    def __init__(self, most: int, seed: int, depth: int = 0) -> None:
        super().__init__()
        self.max_length, self.block_size, self.trees = most, depth, depth > 0
        self._random = torch.Generator().manual_seed(seed)

    def _draw(self, rows: int) -> list[int]:
        lengths = torch.randint(self.max_length + 1, (rows,), generator=self._random)
        if torch.rand((), generator=self._random) < 0.3:
            lengths = torch.zeros_like(lengths)  # of all rows: no drafter's pass
        self.reuse_above = 4 * float(torch.rand((), generator=self._random))
        drawn: list[int] = lengths.tolist()
        return drawn

    def start(self, rows: int) -> list[int]:
        self._rows, self._committed = list(range(rows)), [0] * rows
        self._drafted = self._draw(rows)
        return self._drafted

    def verify_lengths(self, draft: Draft) -> torch.Tensor | None:
        assert draft.tokens.shape == (len(self._drafted), max(self._drafted))
        assert draft.drafted == self._drafted
        if self.trees:
            return None
        return torch.randint(self.max_length + 1, (len(self._drafted),), generator=self._random)

    def observe(self, result: StepResult) -> list[int]:
        assert result.rows == self._rows
        assert result.drafted == self._drafted
        rows = range(len(result.rows))
        for row in rows:
            drafted, accepted = result.drafted[row], result.accepted[row]
            assert 0 <= accepted <= result.verified[row] <= drafted
            assert not (result.rejected[row] and accepted == result.verified[row])
            assert result.committed[row] - accepted in (0, 1)
            assert result.lengths[row] == self._committed[row] + result.committed[row]
            assert (result.last[row] == DICTIONARY.eos()) == result.finished[row]
            way = result.nodes[row]
            assert way == sorted(set(way))
            assert all(0 < node <= drafted for node in way)
            assert self.trees or way == list(range(1, accepted + 1))
        if not any(self._drafted):
            assert not any(result.called)
        kept = result.kept
        answers = self._draw(len(rows))
        self._rows = [result.rows[row] for row in kept]
        self._committed = [result.lengths[row] for row in kept]
        self._drafted = [answers[row] for row in kept]
        return answers


def make(name: str, k: int, seed: int) -> Controller:
    if name == "random":
        return RandomController(k, seed)
    if name == "random tree":
        return RandomController(3 * k, seed, depth=k)
    return make_policy(name, k)


NAMES = [*VARIANTS, "random", "random tree"]
BATCHES = st.sampled_from([[6], [1], [6, 2, 9, 1, 4, 7, 3, 5]])


def assert_exact(
    generator: SpeculativeGenerator, batch: Sample, engine: str = "eager"
) -> list[Hypothesis]:
    """Stock's greedy output in float64, and every identity of the statistics and of the trace."""
    expected = beam1(verifier(), batch, generator.limits)
    told = generator.statistics = type(generator.statistics)()
    hypotheses = [h for (h,) in generator.generate([], batch)]
    assert_same_words(hypotheses, expected, batch, verifier(), TIES[engine])
    assert generator.engines.verifier.name == engine
    steps = [step for h in hypotheses for step in h["trace"]]
    assert told.steps == told.verifier_calls == len(steps) == sum(told.acceptance_histogram)
    assert told.sentences == len(hypotheses)
    assert told.committed_tokens == sum(len(h["tokens"]) for h in hypotheses)
    assert told.drafted_tokens == sum(len(step.drafted) for step in steps)
    assert told.verified_tokens == sum(step.verify_length for step in steps)
    assert told.accepted_tokens == sum(step.accepted for step in steps)
    most = generator.controller.max_length
    for step in steps:
        assert 0 <= step.accepted <= step.verify_length <= len(step.drafted) <= most
        if step.parents is not None:
            assert step.parents[: step.accepted] == list(range(-1, step.accepted - 1))
            assert len(step.parents) == len(step.drafted)
            assert all(-1 <= p != i for i, p in enumerate(step.parents))
    for h in hypotheses:
        committed = [token for step in h["trace"] for token in _committed(step)]
        assert committed == [DICTIONARY[token] for token in h["tokens"]]
        if len(h["tokens"]) > generator.limits.max_len_b:  # the limit forces EOS
            assert h["trace"][-1].bonus == committed[-1]
    return hypotheses


def _committed(step: StepTrace) -> list[str]:
    return [*step.drafted[: step.accepted], *([] if step.bonus is None else [step.bonus])]


@pytest.mark.parametrize("engine", ENGINES)
@examples(60)
@given(
    name=st.sampled_from(NAMES),
    lengths=BATCHES,
    seed=st.integers(0, 99),
    k=st.integers(1, 6),
    corruption=st.sampled_from([0.0, 0.2, 0.6, 1.0]),
    max_len_b=st.integers(1, 16),
)
def test_scripted(
    engine: str,
    name: str,
    lengths: list[int],
    seed: int,
    k: int,
    corruption: float,
    max_len_b: int,
) -> None:
    def script(batch: Sample) -> torch.Tensor:
        right = beam1(verifier(), batch, limits)
        return corrupted(right, max_len_b + 1, corruption, len(DICTIONARY), seed)

    limits = GenerationLimits(max_len_b=max_len_b)
    batch, other = make_batch(lengths, seed=seed), make_batch(lengths[::-1], seed=seed + 1)
    controller = make(name, k, seed)
    options: dict[str, Any] = {"limits": limits, "engine": engine_of(engine)}
    model = verifier_for(engine)
    generator = traced(scripted_generator(model, script(batch), controller, **options))
    assert_exact(generator, batch, engine)
    # A second batch meets what the first one taught.
    scripted: Any = generator.drafter
    scripted.script = script(other)
    assert_exact(generator, other, engine)


@pytest.mark.parametrize("engine", ENGINES)
@examples(60)
@given(
    name=st.sampled_from(NAMES),
    kind=st.sampled_from(sorted(DRAFTERS)),
    lengths=BATCHES,
    seed=st.integers(0, 99),
    k=st.integers(1, K),
    max_len_b=st.integers(1, 20),
)
def test_real_drafters(
    engine: str, name: str, kind: str, lengths: list[int], seed: int, k: int, max_len_b: int
) -> None:
    controller = make(name, k, seed)
    generator = make_generator(kind, controller, max_len_b, by=engine)
    assert_exact(generator, make_batch(lengths, seed=seed), engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", sorted(DRAFTERS))
def test_the_smallest_drafts(kind: str, engine: str) -> None:
    """Blocks, trees and sources of one token, by every controller: lists of pairs are empty."""
    for name in NAMES:
        for k, lengths in ((1, [1]), (1, [4, 1, 2]), (2, [1])):
            generator = make_generator(kind, make(name, k, 0), 6, by=engine)
            assert_exact(generator, make_batch(lengths, seed=k), engine)


@pytest.mark.usefixtures("exact_softmax")
@pytest.mark.parametrize("engine", ENGINES)
@examples(40)
@given(
    kind=st.sampled_from(sorted(DRAFTERS)),
    lengths=BATCHES,
    seed=st.integers(0, 99),
    tau=st.sampled_from([0.0, 0.5, 2.0]),
)
def test_relaxed_trees_commit_what_the_rule_accepts(
    engine: str, kind: str, lengths: list[int], seed: int, tau: float
) -> None:
    batch = make_batch(lengths, seed=seed)
    controller = make("random tree", K, seed)
    generator = make_generator(kind, controller, 12, RelaxedRule(3, tau), engine)
    tie = TIES[engine]
    for row, (found,) in enumerate(generator.generate([], batch)):
        tokens = found["tokens"]
        previous = torch.cat([tokens.new_tensor([DICTIONARY.eos()]), tokens[:-1]])[None]
        logits, _ = verifier()(**one_row(batch, row)["net_input"], prev_output_tokens=previous)
        scores = logits[0].log_softmax(-1)
        scores[:, DICTIONARY.pad()] = -torch.inf
        scores[0, DICTIONARY.eos()] = -torch.inf
        inner = scores[:12] if len(tokens) > 12 else scores
        for own, token in zip(inner, tokens):
            assert (own > own[token] + tie).sum() < 3
            assert own.max() - own[token] <= tau + max(tie, 1e-9)


def test_rows_reuse_drafts_each_by_itself() -> None:
    called = []

    class Noted(Tree):
        def observe(self, result: StepResult) -> list[int]:
            called.append(set(result.called))
            return super().observe(result)

    controller = Noted(tree_nodes=12, redraft_below=0.5).ready(K)
    generator = make_generator("causal, all shared", controller, 12)
    assert_exact(generator, make_batch([6, 2, 9, 1, 4, 7, 3, 5], seed=3))
    assert {True} in called
    assert {True, False} in called


def test_a_rest_below_the_threshold_is_not_verified() -> None:
    """``--redraft-below inf`` drafts in every step, 0 while anything is left; 2 is in between."""
    calls = []
    for threshold in (math.inf, 2.0, 0.0):
        controller = Tree(tree_nodes=12, redraft_below=threshold).ready(K)
        generator = make_generator("causal, all shared", controller, 12)
        generator.generate([], make_batch([6, 2, 9, 1, 4, 7, 3, 5], seed=3))
        told = generator.statistics
        calls.append(told.drafter_calls / told.steps)
    assert calls[0] == 1 > calls[1] > calls[2]


@examples(40)
@given(seed=st.integers(0, 99), corruption=st.sampled_from([0.1, 0.3]), k=st.integers(2, 6))
def test_the_oracles_plans_are_each_rows(seed: int, corruption: float, k: int) -> None:
    """Rows end at many lengths, and the others change places."""
    batch, limits = make_batch([6, 2, 9, 1, 4, 7, 3, 5], seed=seed), GenerationLimits(max_len_b=15)
    script = corrupted(beam1(verifier(), batch, limits), 16, corruption, len(DICTIONARY), seed)
    oracle = scripted_generator(verifier(), script, make_policy("oracle", k), limits=limits)
    oracle.generate([], batch)
    assert oracle.statistics.verified_tokens == oracle.statistics.accepted_tokens > 0


def test_the_oracle_verifies_what_is_accepted_and_nothing_else() -> None:
    batch = make_batch([6, 2, 9, 1, 4])
    controller, limits = make_policy("oracle", 4), GenerationLimits(max_len_b=15)
    script = corrupted(beam1(verifier(), batch, limits), 16, 0.3, len(DICTIONARY), 1)
    settled: dict[str, object] = {"limits": limits}
    plain = traced(scripted_generator(verifier(), script, 4, **settled))
    oracle = traced(scripted_generator(verifier(), script, controller, **settled))
    whole, cut = assert_exact(plain, batch), assert_exact(oracle, batch)
    assert [h["accepted"] for h in whole] == [h["accepted"] for h in cut]
    # Its first pass is not counted.
    told = oracle.statistics
    assert told.steps == plain.statistics.steps
    assert told.verified_tokens == told.accepted_tokens == plain.statistics.accepted_tokens > 0
    assert told.drafted_tokens < plain.statistics.drafted_tokens
    assert all(len(step.drafted) == (4 if step.accepted else 0) for h in cut for step in h["trace"])
