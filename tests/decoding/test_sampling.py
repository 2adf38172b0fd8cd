"""Sampled output is distributed as the verifier's own, whatever is drafted and left out of it."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch
from chi_square import p_value
from conftest import make_batch, make_dictionary, make_task, make_verifier
from drafters import make_block, make_causal
from fairseq.search import Sampling as StockSampling
from fairseq.sequence_generator import SequenceGenerator
from scripted import ScriptedHead, attach

from specdec_plugins.decoding.acceptance import AcceptanceRule
from specdec_plugins.decoding.controllers import Bounds, ControllerOptions
from specdec_plugins.decoding.controllers.cost_aware import CostAware
from specdec_plugins.decoding.cost_profile import StepCosts
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.probabilities import Sampling

DICTIONARY = make_dictionary(2)
EOS, PAD = DICTIONARY.eos(), DICTIONARY.pad()
LENGTH, ROWS = 3, 6000
TASK = make_task(DICTIONARY)
VERIFIER = make_verifier(TASK, seed=3)
TASK.verifier = VERIFIER
DRAFTERS = {
    "block": make_block(TASK, seed=1),
    "causal": make_causal(TASK, seed=1, verifier_features=True, previous_token_head=True),
}
BATCH = make_batch([5], vocabulary=len(DICTIONARY))


# Sure of some tokens and unsure of others, by what the drafter says.
HEAD = ScriptedHead(lambda states, probabilities: torch.where(probabilities > 0.3, 0.95, 0.4))


@cache
def distribution(temperature: float, sampling: Sampling) -> dict[tuple[int, ...], float]:
    """Of the verifier's outputs, found by going through all of them."""
    found: dict[tuple[int, ...], float] = {}
    open_prefixes: dict[tuple[int, ...], float] = {(): 1.0}
    for position in range(LENGTH + 1):
        longer: dict[tuple[int, ...], float] = {}
        for prefix, chance in open_prefixes.items():
            with torch.no_grad():
                logits, _ = VERIFIER(
                    **BATCH["net_input"], prev_output_tokens=torch.tensor([[EOS, *prefix]])
                )
            lprobs = (logits[0, -1] / temperature).log_softmax(-1)
            lprobs[PAD] = -math.inf
            if position < 1:
                lprobs[EOS] = -math.inf
            if position == LENGTH:
                lprobs[torch.arange(len(lprobs)) != EOS] = -math.inf
            for token, p in enumerate(sampling.probabilities(lprobs).tolist()):
                if p > 0:
                    (found if token == EOS else longer)[(*prefix, token)] = chance * p
        open_prefixes = longer
    assert sum(found.values()) == pytest.approx(1)
    return found


def sampled(
    drafter: Any, options: ControllerOptions, temperature: float, sampling: Sampling
) -> SpeculativeGenerator:
    limits = GenerationLimits(max_len_b=LENGTH, temperature=temperature)
    rule = AcceptanceRule(sampling=sampling)
    return SpeculativeGenerator(
        VERIFIER,
        drafter,
        DICTIONARY,
        rule=rule,
        limits=limits,
        controller=options,
        head=HEAD if options.reads_head else None,
    )


def counts_of(generator: Any, rows: int, at_once: int = 500) -> list[tuple[int, ...]]:
    source = BATCH["net_input"]["src_tokens"].expand(at_once, -1)
    sample = {"net_input": {"src_tokens": source, "src_lengths": torch.full((at_once,), 5)}}
    outputs = []
    for _ in range(rows // at_once):
        for (hypothesis,) in generator.generate(None, sample):
            outputs.append(tuple(hypothesis["tokens"].tolist()))
    return outputs


def fit(outputs: list[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """The p-value of outputs under a distribution."""
    assert set(outputs) <= set(expected)
    counts = torch.tensor([outputs.count(output) for output in expected])
    return p_value(counts, len(outputs) * torch.tensor(list(expected.values())))


CONTROLLERS = {
    "none": ControllerOptions("none"),
    "constant": ControllerOptions("constant"),
    "heuristic": ControllerOptions("heuristic"),
    "confidence": ControllerOptions("confidence", confidence_threshold=0.3),
    "confidence, refit": ControllerOptions("confidence", refit_threshold=True),
    "acceptance-head": ControllerOptions("acceptance-head", stop_threshold=0.4),
    "tree": ControllerOptions("tree", tree_nodes=5),
    "tree, drafted anew": ControllerOptions("tree", tree_nodes=5, redraft_below=math.inf),
}


@pytest.mark.parametrize("controller", CONTROLLERS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_output_is_distributed_as_the_verifiers(drafter: str, controller: str) -> None:
    torch.manual_seed(5)
    generator = sampled(DRAFTERS[drafter], CONTROLLERS[controller], 1.0, Sampling())
    outputs = counts_of(generator, ROWS)
    assert fit(outputs, distribution(1.0, Sampling())) > 1e-3
    statistics = generator.statistics
    if controller != "none":
        assert statistics.accepted_tokens > 100
    if controller in ("confidence", "acceptance-head"):
        assert statistics.verified_tokens < statistics.drafted_tokens


@pytest.mark.parametrize("controller", ["none", "constant", "confidence", "tree"])
@pytest.mark.parametrize(
    ("temperature", "sampling"),
    [(0.6, Sampling()), (1.3, Sampling(topk=2)), (0.8, Sampling(topp=0.7))],
)
def test_temperature_top_k_and_top_p(
    temperature: float, sampling: Sampling, controller: str
) -> None:
    torch.manual_seed(6)
    generator = sampled(DRAFTERS["causal"], CONTROLLERS[controller], temperature, sampling)
    outputs = counts_of(generator, ROWS // 2)
    assert fit(outputs, distribution(temperature, sampling)) > 1e-3


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(topk=2), Sampling(topp=0.7)])
def test_the_distribution_is_stock_samplings(sampling: Sampling) -> None:
    torch.manual_seed(7)
    stock = SequenceGenerator(
        [VERIFIER],
        DICTIONARY,
        beam_size=1,
        max_len_b=LENGTH,
        search_strategy=StockSampling(DICTIONARY, sampling.topk, sampling.topp),
    )
    outputs = counts_of(stock, ROWS // 2)
    assert fit(outputs, distribution(1.0, sampling)) > 1e-3


def test_chosen_drafts_are_accepted_when_they_are_drawn() -> None:
    """Also of a drafter that says the same whatever comes: what it says was not drawn."""
    torch.manual_seed(8)
    rule = AcceptanceRule(sampling=Sampling())
    generator = SpeculativeGenerator(
        VERIFIER, None, DICTIONARY, rule=rule, limits=GenerationLimits(max_len_b=LENGTH)
    )
    attach(generator, torch.tensor([[4, 5, EOS, 4, 5]]).expand(500, -1), 3)
    outputs = counts_of(generator, ROWS // 2)
    assert fit(outputs, distribution(1.0, Sampling())) > 1e-3
    assert generator.statistics.accepted_tokens > 100


def test_to_leave_out_unlikely_tokens_unseen_would_skew_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That is why one token more than a controller says is verified: the test can tell."""
    torch.manual_seed(5)
    generator = sampled(DRAFTERS["causal"], CONTROLLERS["confidence"], 1.0, Sampling())
    verify = generator.controller.verify_lengths
    monkeypatch.setattr(generator.controller, "verify_lengths", lambda *asked: verify(*asked) - 1)
    assert fit(counts_of(generator, ROWS), distribution(1.0, Sampling())) < 1e-6


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        (ControllerOptions("oracle"), True),
        (ControllerOptions("cost-aware", survival="head"), True),
        (ControllerOptions("cost-aware", survival="confidence"), True),
        (ControllerOptions("cost-aware", survival="averages"), False),
        (ControllerOptions("cost-aware"), False),
    ],
)
def test_what_looks_at_tokens_that_it_leaves_out_is_refused(
    options: ControllerOptions, refused: bool
) -> None:
    if not refused:
        sampled(DRAFTERS["causal"], options, 1.0, Sampling())
        return
    with pytest.raises(ValueError, match=f"--controller {options.controller}: looks at"):
        sampled(DRAFTERS["causal"], options, 1.0, Sampling())


@pytest.mark.parametrize("depth", [0, 4])
def test_cost_aware_lengths_do_not_skew_it(depth: int) -> None:
    """They change with what was accepted before, and so with what was drawn before."""

    class Costs:
        def costs(self, generator: Any, sample: Any, most: int) -> StepCosts:
            slots = torch.arange(most + 1.0).expand(len(sample["net_input"]["src_tokens"]) + 1, -1)
            return StepCosts(0.05 * slots, 1 + 0.1 * slots)

    torch.manual_seed(9)
    generator = sampled(DRAFTERS["causal"], ControllerOptions("tree"), 1.0, Sampling())
    generator.controller = CostAware(Bounds(0, 4), Costs(), depth=depth)
    outputs = counts_of(generator, ROWS, 20)
    assert fit(outputs, distribution(1.0, Sampling())) > 1e-3
    assert generator.statistics.accepted_tokens > 100


def test_seeds_decide() -> None:
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        generator = sampled(DRAFTERS["causal"], CONTROLLERS["constant"], 1.0, Sampling())
        outputs.append(counts_of(generator, 50, 50))
    assert outputs[0] == outputs[1] != outputs[2]
