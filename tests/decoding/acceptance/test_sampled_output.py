"""Sampled output, with real random numbers: its distribution is fairseq's.

That it is exactly the verifier's is shown in ``test_exact_sampling.py``, of all whose rows are
decided each by itself.
"""

from __future__ import annotations

import pytest
import torch
from fairseq.search import Sampling as StockSampling
from fairseq.sequence_generator import SequenceGenerator
from helpers.decoding.chi_square import p_value
from helpers.decoding.scripted import ScriptedHead
from helpers.models.tiny_vocabulary import (
    DICTIONARY,
    TINY_DRAFTERS,
    VERIFIER,
    Output,
    distribution,
    sample_of,
)

from specdec_plugins.decoding.acceptance import SamplingRule
from specdec_plugins.decoding.build import build_generator
from specdec_plugins.decoding.controllers.base import Controller
from specdec_plugins.decoding.controllers.simple import Confidence, Constant, Tree
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import GenerationLimits

pytestmark = pytest.mark.no_cover

LENGTH, ROWS = 3, 4000
LIMITS = GenerationLimits(max_len_b=LENGTH)
HEAD = ScriptedHead(lambda states, probabilities: probabilities)


def sampled(options: Controller) -> SpeculativeGenerator:
    rule, drafter = SamplingRule(), TINY_DRAFTERS["causal"]
    return build_generator(
        VERIFIER, drafter, DICTIONARY, rule=rule, limits=LIMITS, controller=options, head=HEAD
    )


def outputs_of(
    generator: SpeculativeGenerator, rows: int = ROWS, at_once: int = 500
) -> list[Output]:
    return [
        tuple(hypothesis["tokens"].tolist())
        for _ in range(rows // at_once)
        for (hypothesis,) in generator.generate(None, sample_of(at_once))
    ]


def fit(outputs: list[Output], sampling: SamplingRule) -> float:
    """The p-value of outputs under the verifier's distribution."""
    expected = distribution(LENGTH, 1.0, sampling)
    assert set(outputs) <= set(expected)
    counts = torch.tensor([outputs.count(output) for output in expected])
    return p_value(counts, len(outputs) * torch.tensor(list(expected.values())))


@pytest.mark.parametrize("sampling", [SamplingRule(), SamplingRule(2), SamplingRule(-1, 0.7)])
def test_the_distribution_is_stock_samplings(sampling: SamplingRule) -> None:
    torch.manual_seed(7)
    stock = SequenceGenerator(
        [VERIFIER],
        DICTIONARY,
        beam_size=1,
        max_len_b=LENGTH,
        search_strategy=StockSampling(DICTIONARY, sampling.sampling_topk, sampling.sampling_topp),
    )
    assert fit(outputs_of(stock, ROWS // 2), sampling) > 1e-3


@pytest.mark.parametrize(
    "options",
    [
        Constant(),
        Confidence(refit_threshold=True),
        Tree(tree_nodes=5),
    ],
)
def test_output_is_distributed_as_the_verifiers(options: Controller) -> None:
    torch.manual_seed(5)
    generator = sampled(options)
    assert fit(outputs_of(generator), SamplingRule()) > 1e-3
    assert generator.statistics.accepted_tokens > 100
