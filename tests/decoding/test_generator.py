"""Strict output is the verifier's greedy output, whatever the drafter proposes."""

from __future__ import annotations

import math

import pytest
from conftest import examples, make_batch, make_verifier, vary_output
from helpers.decoding.scripted import corrupted, scripted_generator
from helpers.decoding.strict import (
    BOS,
    DICTIONARY,
    EOS,
    PAD,
    UNK,
    K,
    beam1,
    check_beam1,
    specdec,
)
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.decoding.acceptance import RelaxedRule
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.step_result import Judgement, Observer, StepResult

pytestmark = pytest.mark.usefixtures("exact_softmax")
VARIED = vary_output(make_verifier())
ALL = RelaxedRule(len(DICTIONARY), math.inf)


@examples(60)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    seed=st.integers(0, 9),
    k=st.integers(0, 6),
    limits=st.builds(
        GenerationLimits,
        max_len_b=st.integers(3, 15),
        min_len=st.integers(0, 3),
        unkpen=st.sampled_from([0.0, -3.0, 2.0, math.inf]),
        temperature=st.sampled_from([0.5, 1.0]),
        lenpen=st.sampled_from([0.6, 1.0]),
        normalize_scores=st.booleans(),
    ),
    corruption=st.sampled_from([0.0, 0.2, 0.6, 1.0]),
)
def test_strict_equals_beam_1(
    lengths: list[int], seed: int, k: int, limits: GenerationLimits, corruption: float
) -> None:
    batch = make_batch(lengths, seed=seed)
    expected = beam1(VARIED, batch, limits)
    script = corrupted(expected, limits.max_len_b + 1, corruption, len(DICTIONARY), seed)
    generator = SpeculativeGenerator(VARIED, None, DICTIONARY, limits=limits)
    if k:
        generator = scripted_generator(VARIED, script, k, limits=limits)
    found = check_beam1(generator, batch)
    assert generator.statistics.committed_tokens == sum(len(h["tokens"]) for h in expected)
    if corruption == 0.0 and k:
        assert all(len(h["accepted"]) == -(-len(h["tokens"]) // (k + 1)) for h in found)


def test_what_follows_a_drafted_eos_is_not_committed() -> None:
    """However good it is: EOS ends the row."""
    generator = specdec([6, EOS, 7, 8], rule=ALL, max_len_b=20)
    for (hypothesis,) in generator.generate([], make_batch([5, 3])):
        assert hypothesis["tokens"].tolist() == [6, EOS]
        assert hypothesis["accepted"] == [2]
    assert generator.statistics.committed_tokens == generator.statistics.accepted_tokens == 4
    # Not even EOS, where it is not allowed yet: the verifier's own token stands there.
    generator = specdec([6, EOS, 7, 8], rule=ALL, max_len_b=20, min_len=2)
    for (hypothesis,) in generator.generate([], make_batch([5, 3])):
        tokens = hypothesis["tokens"].tolist()
        assert tokens[0] == 6
        assert EOS not in tokens[:2]
        assert hypothesis["accepted"][0] == 1


class Limits(Observer):
    """Notes by which step each row is ended, and whether by the limit."""

    def begin(self, forced: list[int]) -> None:
        self.ended: dict[int, bool] = {}

    def step(self, result: StepResult, judgement: Judgement | None = None) -> None:
        for row, finished, limited in zip(result.rows, result.finished, result.limited):
            assert finished or not limited
            if finished:
                self.ended[row] = limited


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    seed=st.integers(0, 9),
    k=st.sampled_from([0, 1, 3, 6]),
    data=st.data(),
)
def test_a_sentence_is_limited_if_its_last_token_is_where_the_limit_is(
    lengths: list[int], seed: int, k: int, data: st.DataObject
) -> None:
    """One of exactly as many words, too; with room for one word more it ends by itself."""
    batch = make_batch(lengths, seed=seed)
    whole = beam1(VARIED, batch, GenerationLimits(max_len_b=30))
    # EOS included: where a sentence ends by itself, and one word before it.
    ends = {len(hypothesis["tokens"]) for hypothesis in whole}
    words = data.draw(
        st.sampled_from(sorted({5, *(n - by for n in ends for by in (0, 1))} - {0, 30, 31}))
    )
    limits = GenerationLimits(max_len_b=words)
    generator = SpeculativeGenerator(VARIED, None, DICTIONARY, limits=limits)
    if k:
        script = corrupted(whole, 40, 0.2, len(DICTIONARY), seed)
        generator = scripted_generator(VARIED, script, k, limits=limits)
    generator.observers.append(noted := Limits())
    generator.generate([], batch)
    expected = [len(hypothesis["tokens"]) > words for hypothesis in whole]
    assert [noted.ended[row] for row in range(len(lengths))] == expected


@examples(40)
@given(
    tokens=st.lists(st.sampled_from([BOS, PAD, EOS, UNK, 5, 9]), min_size=1, max_size=K),
    seed=st.integers(0, 99),
    max_len_b=st.integers(1, 12),
    min_len=st.integers(0, 1),
    unkpen=st.sampled_from([0.0, math.inf]),
)
def test_the_widest_acceptance_still_keeps_to_what_is_allowed(
    tokens: list[int], seed: int, max_len_b: int, min_len: int, unkpen: float
) -> None:
    generator = specdec(tokens, rule=ALL, max_len_b=max_len_b, min_len=min_len, unkpen=unkpen)
    hypotheses = [h for (h,) in generator.generate([], make_batch([5, 1, 7], seed=seed))]
    for hypothesis in hypotheses:
        found = hypothesis["tokens"].tolist()
        assert PAD not in found
        assert unkpen == 0.0 or UNK not in found
        assert found.index(EOS) == len(found) - 1
        assert min_len <= len(found) - 1 <= max_len_b
        assert hypothesis["positional_scores"].isfinite().all()
    # Whatever else was drafted has been taken, so the very first block is.
    allowed = [t for t in tokens if t != PAD and not (t == UNK and unkpen)]
    if allowed == tokens and EOS not in tokens and len(tokens) <= max_len_b:
        assert all(hypothesis["accepted"][0] == len(tokens) for hypothesis in hypotheses)


@pytest.mark.parametrize("name", ["block", "causal", "causal, all shared"])
def test_unknown_words_and_empty_lines_are_sentences(name: str) -> None:
    batch = make_batch([5, 1, 4], seed=5)
    source = batch["net_input"]["src_tokens"]
    source[0, :4] = UNK
    assert source[1].tolist() == [PAD] * 4 + [EOS]
    check_beam1(specdec(name, max_len_b=9), batch)
