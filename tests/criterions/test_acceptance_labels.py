"""Labels are what the generator accepts after the same prefixes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import make_batch, make_dictionary, make_task, make_verifier, thinned
from fairseq.models.transformer import TransformerModelBase
from helpers.decoding.chi_square import p_value
from helpers.models.drafters import make_block, make_causal

from specdec_plugins.criterions.acceptance_labels import AcceptanceLabeller, LabelledBlocks
from specdec_plugins.decoding.acceptance import (
    AcceptanceRule,
    RelaxedRule,
    SamplingRule,
    Scoring,
    StrictRule,
)
from specdec_plugins.decoding.build import build_generator
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.step_result import Hypothesis
from specdec_plugins.host.fairseq_types import Sample
from specdec_plugins.models.drafter import Drafter

pytestmark = pytest.mark.no_cover

EOS, PAD, K, LIMIT = 2, 1, 4, 30
# Few words, so that random models agree now and then.
DICTIONARY = make_dictionary(4)
RULES = {"strict": StrictRule(), "relaxed": RelaxedRule(3, 2.0)}


def make_pair(name: str, seed: int) -> tuple[Drafter, TransformerModelBase]:
    task = make_task(DICTIONARY)
    verifier = make_verifier(task, seed=seed)
    if name == "block":
        return make_block(task, seed=seed + 50), verifier
    task.verifier = verifier
    settings = {"verifier_features": True, "previous_token_head": True}
    if name == "shared":
        settings["share_verifier_encoder"] = True
    return make_causal(task, seed=seed + 50, **settings), verifier


def decode(
    drafter: Drafter,
    verifier: TransformerModelBase,
    rule: AcceptanceRule,
    batch: Sample,
    penalty: float = 1.0,
    **begin: Any,
) -> list[Hypothesis]:
    limits = GenerationLimits(max_len_b=LIMIT, repetition_penalty=penalty)
    generator = build_generator(verifier, drafter, DICTIONARY, rule=rule, limits=limits)
    return [hypotheses[0] for hypotheses in generator.generate(None, batch, **begin)]


def targets_and_cuts(
    hypotheses: list[Hypothesis], forced: int = 0
) -> tuple[torch.Tensor, torch.Tensor, list[list[int]]]:
    """What was decoded, where every step began, and how much it accepted; rows are padded."""
    target = torch.nn.utils.rnn.pad_sequence(
        [h["tokens"] for h in hypotheses], batch_first=True, padding_value=PAD
    ).clone()
    steps = max(len(h["accepted"]) for h in hypotheses)
    cuts = torch.full((len(hypotheses), steps), forced)
    for row, hypothesis in enumerate(hypotheses):
        for step in range(1, len(hypothesis["accepted"])):
            cuts[row, step] = cuts[row, step - 1] + hypothesis["accepted"][step - 1] + 1
    return target, cuts, [h["accepted"] for h in hypotheses]


BEGINNINGS: dict[str, tuple[float, int | None, int]] = {
    "1.0": (1.0, None, 0),
    "2.0": (2.0, None, 0),
    "in place of EOS": (1.0, 5, 0),
    "forced": (1.0, None, 1),
}
"""The repetition penalty, what stands in place of EOS, and tokens that are forced."""


@thinned(name=["causal", "shared", "block"], rule=RULES, beginning=BEGINNINGS)
def test_labels_equal_what_the_generator_accepts(name: str, rule: str, beginning: str) -> None:
    penalty, begin, forced = BEGINNINGS[beginning]
    compared = accepted_tokens = 0
    for seed in (0, 3, 4):
        drafter, verifier = make_pair(name, seed)
        drafter.begin = begin or EOS
        batch = make_batch([6, 2, 9, 4, 7, 3, 8, 5], vocabulary=8, seed=seed)
        given = {"bos_token": begin, "prefix_tokens": torch.full((8, 1), 6) if forced else None}
        decoded = decode(drafter, verifier, RULES[rule], batch, penalty, **given)
        target, cuts, accepted = targets_and_cuts(decoded, forced)
        scoring = Scoring(RULES[rule], repetition_penalty=penalty)
        labeller = AcceptanceLabeller(drafter, scoring, K)
        blocks = labeller(batch["net_input"], target, cuts, torch.zeros(len(target)))
        assert torch.equal(blocks.cuts, cuts.sort(1, descending=True).values)
        for row, counts in enumerate(accepted):
            for step, count in enumerate(counts):
                cut = int(cuts[row, step])
                if cut + K < LIMIT:  # the generator's length limit is not the verifier's opinion
                    block = int((blocks.cuts[row] == cut).nonzero()[0, 0])
                    assert int(blocks.accepted[row, block]) == count
                    drafted = blocks.draft[row, block, :count]
                    assert torch.equal(drafted, target[row, cut : cut + count])
                    compared += 1
                    accepted_tokens += count
    assert compared > 100
    assert accepted_tokens > (5 if rule == "strict" else 100)


@thinned(
    name=["causal", "block"], draws=[(0.5, SamplingRule(sampling_topk=3)), (1.0, SamplingRule())]
)
def test_sampling_labels_are_distributed_as_what_the_generator_accepts(
    name: str, draws: tuple[float, SamplingRule]
) -> None:
    """Of the first block of a sentence."""
    rows, (temperature, rule) = 3000, draws
    drafter, verifier = make_pair(name, 1)
    source = make_batch([6], vocabulary=8)["net_input"]["src_tokens"].expand(rows, -1)
    net_input = {"src_tokens": source, "src_lengths": torch.full((rows,), 6)}
    # So short that few steps follow, and no EOS is forced on the first.
    limits = GenerationLimits(max_len_b=K + 1, temperature=temperature)
    torch.manual_seed(3)
    generator = build_generator(verifier, drafter, DICTIONARY, rule=rule, limits=limits)
    firsts = [h["accepted"][0] for (h,) in generator.generate(None, {"net_input": net_input})]
    labeller = AcceptanceLabeller(drafter, Scoring(rule, temperature), K)
    target, cuts = torch.full((rows, 2), EOS), torch.zeros(rows, 1).long()
    blocks = labeller(net_input, target, cuts, torch.zeros(rows))
    expected = torch.tensor(firsts).bincount(minlength=K + 1)
    found = blocks.accepted[:, 0].bincount(minlength=K + 1)
    # Half of the difference comes from the counts that are expected here.
    assert expected[1:].any()
    # What is said of draws is what they come to: five standard deviations, at most.
    for said, drawn in (
        (blocks.reached, blocks.decided),
        (blocks.reached * blocks.chances, blocks.survived & blocks.open),
    ):
        assert (said - drawn.double()).mean(0).abs().max() < 5 * 0.5 / rows**0.5
    assert ((blocks.chances > 0) & (blocks.chances < 1)).any()
    assert p_value(expected + (found - expected) / 2**0.5, expected.double(), 20) > 1e-3


def test_slots_after_a_rejection_or_an_accepted_eos_are_not_decided() -> None:
    draft = torch.tensor([[[5, 6, 7, 8], [5, EOS, 7, 8], [5, EOS, 7, 8], [5, 6, 7, EOS]]])
    accepted = torch.tensor([[1, 2, 1, 4]])
    empty = torch.zeros(1, 4, 4)
    chances = (torch.arange(4) < accepted[..., None]).float()
    blocks = LabelledBlocks(EOS, accepted, empty[..., None], empty, draft, accepted, chances)
    assert blocks.survived.long().tolist() == [
        [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]]
    ]
    assert blocks.open.long().tolist() == [[[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]]]
    assert blocks.decided.long().tolist() == [
        [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]]
    ]
    assert torch.equal(blocks.reached, blocks.decided.float())
