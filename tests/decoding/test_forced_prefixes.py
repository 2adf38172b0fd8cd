"""Target prefixes: output and scores are those of fairseq's search with the same ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import examples, make_batch, thinned
from helpers.decoding.controlled import DRAFTERS, VARIANTS, K, make_generator, make_policy
from helpers.decoding.controlled import verifier as controlled_verifier
from helpers.decoding.scripted import DICTIONARY
from helpers.decoding.shared_sessions import NAMES as ENGINES
from helpers.decoding.shared_sessions import TIES
from helpers.decoding.strict import (
    EOS,
    PAD,
    assert_beam1,
    assert_same_words,
    beam1,
    check_beam1,
    make_drafter,
    specdec,
    verifier,
)
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specdec_plugins.decoding.acceptance import RelaxedRule, SamplingRule
from specdec_plugins.decoding.controllers.base import Controller
from specdec_plugins.decoding.controllers.simple import NoDrafts
from specdec_plugins.decoding.drafter_alone import DrafterAlone
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.step_result import Hypothesis
from specdec_plugins.host.fairseq_types import Sample

pytestmark = pytest.mark.usefixtures("exact_softmax")
LENGTHS = [5, 3, 9, 1]
WORDS = [7, 5, 9]


def prefixes(*rows: list[int]) -> Tensor:
    """``(rows, n)`` of these tokens, then pad."""
    width = max(map(len, rows))
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])


def counted(generator: SpeculativeGenerator, batch: Sample, **begin: object) -> list[Hypothesis]:
    """Outputs, which are fairseq's, and the identities of the statistics."""
    found = check_beam1(generator, batch, **begin)
    assert_counted(generator, found)
    return found


def assert_counted(generator: SpeculativeGenerator, found: list[Hypothesis]) -> None:
    """The statistics are those of these outputs."""
    told = generator.statistics
    committed = sum(len(h["tokens"]) - h["forced"] for h in found)
    assert told.committed_tokens == committed
    assert told.forced_tokens == sum(h["forced"] for h in found)
    assert told.accepted_tokens == sum(sum(h["accepted"]) for h in found)
    passes = len(found) if told.forced_tokens else 0
    assert told.verifier_calls == told.steps + passes
    for h in found:
        assert torch.equal(torch.cat([part["tokens"] for part in h["history"]]), h["tokens"])
        assert len(h["history"]) == h["steps"] + (h["forced"] > 0)


TOKENS = st.integers(4, len(DICTIONARY) - 1)
PREFIX = st.tuples(st.lists(TOKENS, max_size=5), st.booleans()).map(
    lambda drawn: drawn[0] + [EOS] * drawn[1]
)


@pytest.mark.parametrize("engine", ENGINES)
@examples(50)
@given(
    name=st.sampled_from([*VARIANTS, "none"]),
    kind=st.sampled_from(sorted(DRAFTERS)),
    rows=st.lists(st.tuples(st.integers(1, 9), PREFIX), min_size=1, max_size=6),
    seed=st.integers(0, 99),
    max_len_b=st.integers(1, 12),
    begin=st.sampled_from([None, 6]),
)
def test_each_row_begins_with_its_own(
    engine: str,
    name: str,
    kind: str,
    rows: list[Any],
    seed: int,
    max_len_b: int,
    begin: int | None,
) -> None:
    """Whatever the controller, the drafter, the batch and the prefixes."""
    lengths, forced = zip(*rows)
    controller: Controller = NoDrafts() if name == "none" else make_policy(name, K)
    generator = make_generator(kind, controller, max_len_b, by=engine)
    given: dict[str, Any] = {} if begin is None else {"bos_token": begin}
    given["prefix_tokens"] = prefixes(*forced)
    for _ in range(2):
        generator.statistics = type(generator.statistics)()
        batch = make_batch(list(lengths), seed=seed)
        if engine == "eager":
            found = counted(generator, batch, **given)
        else:
            found = [h for (h,) in generator.generate([], batch, **given)]
            model = controlled_verifier()
            expected = beam1(model, batch, generator.limits, **given)
            assert_same_words(found, expected, batch, model, TIES[engine], **given)
            assert_counted(generator, found)
        for hypothesis, row in zip(found, forced):
            words = [token for token in row if token != EOS][:max_len_b]
            assert hypothesis["tokens"].tolist()[: len(words)] == words
            assert hypothesis["forced"] == len(words)


@thinned(name=[None, "causal"], min_len=[1, 3])
def test_the_minimum_length_does_not_hold_within_prefixes(name: str | None, min_len: int) -> None:
    """Nor in free rows, as far as the longest prefix of the batch goes."""
    batch = make_batch([5, 3, 9, 1, 7, 2], seed=3)
    forced = prefixes([EOS], [7, EOS], [7, 8, EOS], [], [7, 5, 9, 6], [8])
    generator = specdec(name, max_len_b=9, min_len=min_len)
    found = counted(generator, batch, prefix_tokens=forced)
    assert [len(h["tokens"]) for h in found[:3]] == [1, 2, 3]
    longer = counted(specdec(name, min_len=7), batch, prefix_tokens=prefixes(*[[8]] * 6))
    assert all(len(h["tokens"]) >= 8 for h in longer)


def test_relaxed_output_and_samples_begin_with_it_too() -> None:
    batch, forced = make_batch(LENGTHS, seed=1), prefixes(WORDS, [6], [], [8, EOS])
    for rule in (RelaxedRule(5, 3.0), SamplingRule()):
        generator = specdec("causal", rule=rule)
        found = [h for (h,) in generator.generate([], batch, prefix_tokens=forced)]
        assert [h["forced"] for h in found] == [3, 1, 0, 1]
        for hypothesis, row in zip(found, ([*WORDS], [6], [], [8, EOS])):
            assert hypothesis["tokens"].tolist()[: len(row)] == row
    relaxed = specdec("causal", rule=RelaxedRule(1, 0.0))
    found = [h for (h,) in relaxed.generate([], batch, prefix_tokens=forced)]
    assert_beam1(found, batch, verifier(), GenerationLimits(), prefix_tokens=forced)


@pytest.mark.parametrize("name", ["block", "causal, features", "causal, all shared"])
def test_the_drafter_alone_goes_on_from_it(name: str) -> None:
    drafter = make_drafter(name)
    generator = DrafterAlone(drafter, verifier(), DICTIONARY, limits=GenerationLimits())
    batch, forced = make_batch(LENGTHS, seed=1), prefixes(WORDS, [6], [], [8, EOS])
    free = generator.generate([], batch)
    found = generator.generate([], batch, prefix_tokens=forced)
    assert found[2][0]["tokens"].tolist() == free[2][0]["tokens"].tolist()
    assert found[0][0]["tokens"].tolist()[:3] == WORDS
    assert found[3][0]["tokens"].tolist() == [8, EOS]
    assert found[0][0]["positional_scores"].tolist()[:3] == [0, 0, 0]


def test_prefixes_that_cannot_be_are_refused() -> None:
    generator, batch = specdec(None), make_batch(LENGTHS)
    with pytest.raises(ValueError, match=r"prefix tokens \[1, 7\]: a token comes after pad"):
        generator.generate([], batch, prefix_tokens=torch.tensor([[PAD, 7]] * 4))
    with pytest.raises(ValueError, match="constraints: not supported"):
        generator.generate([], batch, constraints=torch.tensor([[7]]))
