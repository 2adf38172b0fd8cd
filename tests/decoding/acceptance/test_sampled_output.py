"""Sampled output, with real random numbers: by its distribution, which is fairseq's, and its seed.

Also as commands draw it, from files: AR's and speculation's. That it is exactly the verifier's is
shown in ``test_exact_sampling.py``, of all whose rows are decided each by itself.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from chi_square import p_value, same_p_value
from drafters import save_pair
from fairseq.search import Sampling as StockSampling
from fairseq.sequence_generator import SequenceGenerator
from scripted import ScriptedHead
from tiny_vocabulary import DICTIONARY, DRAFTERS, VERIFIER, Output, distribution, sample_of

from specdec_plugins.decoding.acceptance import SamplingRule
from specdec_plugins.decoding.build import build_generator
from specdec_plugins.decoding.controllers.base import CONTROLLERS, Controller
from specdec_plugins.decoding.controllers.simple import Confidence, Constant, Tree
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.inference import Settings, load_translator

pytestmark = pytest.mark.no_cover

LENGTH, ROWS = 3, 6000
LIMITS = GenerationLimits(max_len_b=LENGTH)
HEAD = ScriptedHead(lambda states, probabilities: probabilities)


def sampled(options: Controller) -> SpeculativeGenerator:
    rule, drafter = SamplingRule(), DRAFTERS["causal"]
    return build_generator(
        VERIFIER, drafter, DICTIONARY, rule=rule, limits=LIMITS, controller=options, head=HEAD
    )


def outputs_of(generator: Any, rows: int = ROWS, at_once: int = 500) -> list[Output]:
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


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = save_pair(tmp_path_factory.mktemp("pair"))
    files = {"path": str(folder / "drafter.pt"), "ar_path": str(folder / "verifier.pt")}
    limits = GenerationLimits(max_len_b=2, temperature=0.7)
    return Settings(data=str(folder), batch=200, limits=limits, rule=SamplingRule(), **files)


def drawn(settings: Settings, source: str, seeds: range) -> Counter[str]:
    """What a translator says to a line, so many times for each seed."""
    translator = load_translator(settings)
    texts = (t.text for seed in seeds for t in translator.translate([source] * 200, seed=seed))
    found = Counter(texts)
    assert settings.strategy == "AR" or translator.statistics.accepted_tokens > 100
    return found


@pytest.mark.parametrize(
    "source", ["w3 w4 w5", pytest.param("w9 w8 w7 w6", marks=pytest.mark.slow)]
)
def test_speculation_draws_as_ar_does(pair: Settings, source: str) -> None:
    """By seeds of its own: with the same ones both would draw much alike."""
    alone = drawn(replace(pair, strategy="AR"), source, range(12))
    for controller in ("constant", "confidence", "tree"):
        speculative = replace(pair, controller=CONTROLLERS[controller]())
        found = drawn(speculative, source, range(100, 112))
        assert same_p_value(alone, found) > 1e-3, controller
