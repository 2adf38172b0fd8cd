"""Drafts by the writer never change strict output, and cost little where they are wrong."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import pytest
import torch
from conftest import examples, make_batch, make_verifier
from decoding.test_text_drafting import (
    CASES,
    DICTIONARY,
    EOS,
    LIMITS,
    PAD,
    assert_greedy,
    generator,
    greedy,
    noisy,
)
from fairseq.models.transformer import TransformerModelBase
from helpers.decoding.controlled import verifier
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.decoding.controllers.base import CONTROLLERS
from specdec_plugins.decoding.drafting import DraftSource
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import GenerationLimits, TokenBans
from specdec_plugins.decoding.steps.verifier import VerifierStep
from specdec_plugins.decoding.text_drafting import Credit
from specdec_plugins.decoding.writer_drafting import WriterDrafting
from specdec_plugins.engines.writer import kernel
from specdec_plugins.engines.writer.writer import Writer

pytestmark = pytest.mark.skipif(
    kernel.FAMILY is None, reason="the processor has none of the writer's instructions"
)


def written(
    model: TransformerModelBase, limits: GenerationLimits = LIMITS, **credit: Credit
) -> DraftSource:
    bans = TokenBans(limits, PAD, DICTIONARY.unk(), EOS)
    writer = Writer(VerifierStep(model), PAD, EOS, {})
    return DraftSource(partial(WriterDrafting, writer, bans, **credit))


@cache
def source_of(noise: float) -> DraftSource:
    return written(noisy(noise))


@examples(40)
@given(**CASES, noise=st.sampled_from([0.0, 0.02, 0.3]))
def test_any_writer_gives_the_verifiers_words(
    lengths: tuple[int, ...], seed: int, controller: str, forced: bool, k: int, noise: float
) -> None:
    """In float64, also where its weights are others, and rows have padded sources and prefixes."""
    expected, prefix = greedy(lengths, seed, forced)
    made = generator(source_of(noise), controller, k)
    batch = make_batch(list(lengths), seed=seed)
    assert_greedy(made.generate([], batch, prefix), expected)


def test_a_writer_of_the_same_weights_is_mostly_right() -> None:
    """Each row reads its own source, and its own tokens."""
    made = generator(source_of(0.0))
    for seed in range(10):
        made.generate([], make_batch([3, 9, 6, 5], seed=seed))
    assert made.statistics.acceptance_rate > 0.8


@pytest.mark.parametrize("k", [1, 4, 64])
def test_a_writer_that_always_disagrees_costs_little(
    k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every token that it reads is a pass, which its credit pays and which is counted."""
    wrong = make_verifier(seed=1)
    wrong.load_state_dict(verifier().state_dict())
    projection = wrong.decoder.output_projection
    projection.weight = torch.nn.Parameter(-projection.weight)
    limits = GenerationLimits(max_len_b=60, min_len=59)
    credit, passes = Credit(), 0
    source = written(wrong, limits, credit=credit)
    drafts = (lambda: source), CONTROLLERS["constant"]().ready(k)
    write = kernel.write

    def counted(*arguments: Any) -> int:
        nonlocal passes
        end = write(*arguments)
        passes += end - 1 - arguments[5]
        return end

    monkeypatch.setattr(kernel, "write", counted)
    made = SpeculativeGenerator(verifier(), drafts, DICTIONARY, limits=limits)
    plain = SpeculativeGenerator(verifier(), None, DICTIONARY, limits=limits)
    for seed in range(5):
        batch = make_batch([6], seed=seed)
        assert_greedy(made.generate([], batch), plain.generate([], batch))
    assert made.statistics.accepted_tokens == 0
    assert made.statistics.drafter_calls == passes
    assert passes <= min(k, 60) + made.statistics.committed_tokens / 16


def test_forced_beginnings_are_read() -> None:
    """Another token than EOS before the target changes what is written as it changes the output."""
    made = generator(source_of(0.0))
    plain = SpeculativeGenerator(verifier(), None, DICTIONARY, limits=LIMITS)
    for seed in range(5):
        batch = make_batch([5, 8], seed=seed)
        found = made.generate([], batch, bos_token=7)
        assert_greedy(found, plain.generate([], make_batch([5, 8], seed=seed), bos_token=7))
    assert made.statistics.acceptance_rate > 0.8
