"""Strict output is the verifier's greedy output, whatever the drafter proposes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import make_batch, make_dictionary, make_verifier
from fairseq.sequence_generator import SequenceGenerator
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import ScriptedDrafter, corrupted

from specdec_plugins.decoding.acceptance import AcceptanceRule
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import GenerationLimits

DICTIONARY = make_dictionary()
VERIFIER = make_verifier()


def beam1(model: Any, batch: Any, **options: Any) -> list[Any]:
    generator = SequenceGenerator([model], DICTIONARY, beam_size=1, **options)
    return [hypotheses[0] for hypotheses in generator.generate([model], batch)]


def scripted(script: Any, k: int, rule: AcceptanceRule | None = None, **limits: Any) -> Any:
    generator = SpeculativeGenerator(
        VERIFIER, None, DICTIONARY, rule=rule, limits=GenerationLimits(**limits)
    )
    if k:
        generator.drafter = ScriptedDrafter(script)
        generator.block_size = k
    return generator


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    seed=st.integers(0, 9),
    k=st.integers(0, 6),
    max_len_b=st.integers(1, 15),
    min_len=st.integers(0, 1),
    unkpen=st.sampled_from([0.0, -3.0, 2.0]),
    corruption=st.sampled_from([0.0, 0.2, 0.6, 1.0]),
)
def test_strict_equals_beam_1(
    lengths: list[int],
    seed: int,
    k: int,
    max_len_b: int,
    min_len: int,
    unkpen: float,
    corruption: float,
) -> None:
    batch = make_batch(lengths, seed=seed)
    expected = beam1(VERIFIER, batch, max_len_b=max_len_b, min_len=min_len, unk_penalty=unkpen)
    script = corrupted(expected, max_len_b + 1, corruption, len(DICTIONARY), seed)
    generator = scripted(script, k, max_len_b=max_len_b, min_len=min_len, unkpen=unkpen)
    hypotheses = generator.generate([], batch)
    for (ours,), theirs in zip(hypotheses, expected):
        assert ours["tokens"].tolist() == theirs["tokens"].tolist()
        torch.testing.assert_close(
            ours["positional_scores"].float(), theirs["positional_scores"], atol=1e-4, rtol=1e-4
        )
        torch.testing.assert_close(ours["score"].float(), theirs["score"], atol=1e-4, rtol=1e-4)
    statistics = generator.statistics
    assert sum(statistics.acceptance_histogram) == statistics.steps
    committed = sum(len(h["tokens"]) for h in expected)
    assert statistics.committed_tokens == committed
    assert statistics.accepted_tokens + statistics.bonus_tokens == committed
    assert sum(m * n for m, n in enumerate(statistics.acceptance_histogram)) == (
        statistics.accepted_tokens
    )
    if corruption == 0.0 and k:
        assert all(len(h[0]["accepted"]) == -(-len(h[0]["tokens"]) // (k + 1)) for h in hypotheses)


@pytest.mark.parametrize("batch_rows", [[5], [5, 3, 9, 1, 7]])
def test_a_batch_is_its_rows_one_by_one(batch_rows: list[int]) -> None:
    batch = make_batch(batch_rows)
    together = scripted(None, 0, max_len_b=12).generate([], batch)
    for row, length in enumerate(batch_rows):
        net_input = batch["net_input"]
        one = {
            "src_tokens": net_input["src_tokens"][row : row + 1, -length:],
            "src_lengths": net_input["src_lengths"][row : row + 1],
        }
        alone = scripted(None, 0, max_len_b=12).generate([], {"net_input": one})
        assert alone[0][0]["tokens"].tolist() == together[row][0]["tokens"].tolist()
