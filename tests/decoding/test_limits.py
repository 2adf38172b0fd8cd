"""Length limits and fairseq's other options: defined, and where strict the same as fairseq's."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
from conftest import examples, make_batch
from fairseq.dataclass.configs import GenerationConfig
from helpers.decoding.strict import (
    EOS,
    assert_beam1,
    check_beam1,
    endless,
    one_row,
    specdec,
    verifier,
)
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.decoding.acceptance import AcceptanceRule, RelaxedRule, StrictRule
from specdec_plugins.decoding.limits import REFUSED, GenerationLimits

pytestmark = pytest.mark.usefixtures("exact_softmax")


@pytest.mark.parametrize("name", [None, "block", "causal", [5, 6, 7], [EOS, EOS]])
@pytest.mark.parametrize("rule", [StrictRule(), RelaxedRule(5, 3.0)])
@pytest.mark.parametrize("max_len_b", [1, 2, 5, 11])
def test_a_target_stops_at_the_length_limit(
    max_len_b: int, rule: AcceptanceRule, name: str | list[int] | None
) -> None:
    """EOS follows the last token that is allowed, and nothing else does."""
    batch = make_batch([5, 3, 9, 1], seed=1)
    generator = specdec(name, model=endless(), rule=rule, max_len_b=max_len_b)
    found = [hypothesis for (hypothesis,) in generator.generate([], batch)]
    for hypothesis in found:
        tokens = hypothesis["tokens"].tolist()
        assert len(tokens) <= max_len_b + 1
        assert tokens.index(EOS) == len(tokens) - 1
        assert hypothesis["positional_scores"].isfinite().all()
        assert len(hypothesis["accepted"]) == hypothesis["steps"]
    if rule == StrictRule():
        assert {len(hypothesis["tokens"]) for hypothesis in found} == {max_len_b + 1}
        assert_beam1(found, batch, endless(), generator.limits)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("name", [None, "block", "causal, learned"])
def test_the_verifiers_position_table_limits_the_target(name: str | None, learned: bool) -> None:
    model = endless(max_target_positions=16, decoder_learned_pos=learned)
    assert model.max_decoder_positions() == 16
    found = check_beam1(specdec(name, model=model), make_batch([5, 3, 9, 1, 7, 2], seed=2))
    assert {len(hypothesis["tokens"]) for hypothesis in found} == {16}


@examples(30)
@given(
    name=st.sampled_from([None, "causal"]),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    seed=st.integers(0, 99),
    max_len_a=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    max_len_b=st.integers(1, 12),
    min_len=st.integers(0, 12),
)
def test_limits_count_each_rows_own_source(
    name: str | None, lengths: list[int], seed: int, max_len_a: float, max_len_b: int, min_len: int
) -> None:
    batch, min_len = make_batch(lengths, seed=seed), min(min_len, max_len_b)
    generator = specdec(name, max_len_a=max_len_a, max_len_b=max_len_b, min_len=min_len)
    for row, (found,) in enumerate(generator.generate([], batch)):
        assert_beam1([found], one_row(batch, row), verifier(), generator.limits)
        assert min_len < len(found["tokens"]) <= int(max_len_a * lengths[row] + max_len_b) + 1


def test_a_source_too_short_for_the_minimum() -> None:
    generator = specdec(None, min_len=4, max_len_a=0.5, max_len_b=1)
    message = "--min-len 4: is above the maximum length of a source of 3 tokens, 2"
    with pytest.raises(ValueError, match=message):
        generator.generate([], make_batch([9, 3]))


@pytest.mark.parametrize(("name", "flag", "nothing"), REFUSED)
def test_options_that_would_be_ignored_are_refused_by_name(
    name: str, flag: str, nothing: Any
) -> None:
    asked: Any = {False: True, None: "x"}.get(nothing, 3)
    with pytest.raises(ValueError, match=f"{flag} {asked}: not supported by speculative decoding"):
        GenerationLimits.from_config(Namespace(**{name: asked}))
    assert GenerationLimits.from_config(Namespace(**{name: nothing})) == GenerationLimits()


def test_limits_come_from_fairseqs_config() -> None:
    assert GenerationLimits.from_config(GenerationConfig()) == GenerationLimits()
    assert GenerationLimits.from_config(None) == GenerationLimits()
    cfg = GenerationConfig(
        max_len_a=1.2,
        max_len_b=10,
        min_len=2,
        unkpen=0.5,
        temperature=0.7,
        lenpen=0.9,
        unnormalized=True,
    )
    assert GenerationLimits.from_config(cfg) == GenerationLimits(1.2, 10, 2, 0.5, 0.7, 0.9, False)
    with pytest.raises(ValueError, match="--nbest 2: speculative decoding gives one hypothesis"):
        GenerationLimits.from_config(GenerationConfig(nbest=2))
