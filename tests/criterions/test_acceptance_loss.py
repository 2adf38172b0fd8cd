"""``acceptance_loss`` against a cross entropy written out slot by slot."""

from __future__ import annotations

import math
from argparse import Namespace

import pytest
import torch
from conftest import make_dictionary, make_task, make_verifier
from fairseq.logging import metrics
from helpers.models.drafters import make_causal

from specdec_plugins.criterions.acceptance_labels import AcceptanceLabeller
from specdec_plugins.criterions.acceptance_loss import AcceptanceLoss, AcceptanceLossConfig
from specdec_plugins.decoding.acceptance import (
    AcceptanceRule,
    RelaxedRule,
    SamplingRule,
    Scoring,
    StrictRule,
)
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.host.fairseq_types import Sample
from specdec_plugins.models.acceptance_head import AcceptanceHeadConfig, AcceptanceHeadModel


def make_model(rule: AcceptanceRule) -> tuple[AcceptanceHeadModel, Namespace]:
    task = make_task(make_dictionary(4), AR_path="verifier.pt")
    task.verifier = make_verifier(task)
    task.rule, task.limits = rule, GenerationLimits()
    drafter = make_causal(task, seed=1, verifier_features=True, previous_token_head=True)
    task.load_drafter = lambda path: drafter
    model = AcceptanceHeadModel.build_model(AcceptanceHeadConfig(drafter="drafter.pt"), task)
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model, task


def make_sample() -> Sample:
    sources = torch.tensor([[4, 6, 5, 7, 2], [1, 1, 5, 5, 2], [1, 7, 4, 4, 2]])
    return {
        "net_input": {"src_tokens": sources, "src_lengths": torch.tensor([5, 3, 4])},
        "target": torch.tensor([[4, 5, 6, 2], [7, 2, 1, 1], [5, 5, 2, 1]]),
        "cuts": torch.tensor([[3, 1, 0], [1, 0, 0], [2, 1, 0]]),
        "ntokens": 9,
        "id": torch.arange(3),
        "seeds": torch.arange(3),
    }


@pytest.mark.parametrize("rule", [StrictRule(), RelaxedRule(4, 3.0)])
@pytest.mark.parametrize("weight", [1.0, 6.0])
def test_loss_is_the_weighted_cross_entropy_of_decided_slots(
    rule: AcceptanceRule, weight: float
) -> None:
    model, task = make_model(rule)
    sample = make_sample()
    loss, size, log = AcceptanceLoss(task, AcceptanceLossConfig(mismatch_weight=weight))(
        model, sample
    )
    labeller = AcceptanceLabeller(model.drafter, Scoring(rule), 4)
    blocks = labeller(sample["net_input"], sample["target"], sample["cuts"], sample["id"])
    logits = model.head.logits(blocks.states, blocks.confidences).double()
    expected = total = accepted = decided = squares = 0.0
    for row in range(3):
        for block in range(3):
            for slot in range(4):
                good = slot < blocks.accepted[row, block]
                # What is least where the probability is right: its odds, divided by the weight.
                odds = math.exp(logits[row, block, slot].item()) / weight
                expected -= math.log(odds / (1 + odds)) if good else weight * -math.log1p(odds)
                total += 1 if good else weight
                accepted += good
                decided += 1
                squares += (logits[row, block, slot].sigmoid().item() - float(good)) ** 2
                if not good or blocks.draft[row, block, slot] == 2:
                    break
    assert 0 < accepted < decided < 36
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert size.item() == pytest.approx(total)
    assert (log["accepted"].item(), log["decided"].item()) == (accepted, decided)
    assert log["squares"].item() == pytest.approx(squares, rel=1e-5)


def test_sentence_avg_divides_by_sentences() -> None:
    model, task = make_model(StrictRule())
    losses = [
        AcceptanceLoss(task, AcceptanceLossConfig(sentence_avg=by_sentences))(model, make_sample())
        for by_sentences in (False, True)
    ]
    (by_slots, slots, _), (by_sentences, sentences, log) = losses
    assert by_slots.item() == by_sentences.item()
    assert slots.item() != sentences.item() == log["sample_size"].item() == 3


def test_sampled_labels_depend_on_the_sentences_and_the_update_alone() -> None:
    """As fairseq's seed of the update makes them; in validation, on the sentences."""
    model, task = make_model(SamplingRule())
    criterion, sample = AcceptanceLoss(task, AcceptanceLossConfig()), make_sample()

    def losses(**changes: object) -> set[float]:
        found = set()
        for seed in range(4):
            torch.manual_seed(seed)
            expected = torch.rand(3)
            torch.manual_seed(seed)
            found.add(criterion(model, {**sample, **changes})[0].item())
            assert torch.equal(torch.rand(3), expected)
        return found

    assert len(losses()) == 1
    assert len(losses(seeds=torch.tensor([5, 6, 7]))) == 1
    assert len(set.union(*(losses(seeds=torch.tensor([seed] * 3)) for seed in range(9)))) > 1


def test_metrics_are_means_over_decided_slots() -> None:
    names = "loss", "weights", "decided", "accepted", "predicted", "squares"
    logs = [dict(zip(names, values)) for values in ((2.0, 4.0, 3, 2, 1.5, 1), (1, 2, 1, 1, 0.5, 1))]
    with metrics.aggregate() as aggregator:
        AcceptanceLoss.reduce_metrics(logs)
    found = aggregator.get_smoothed_values()
    assert found["loss"] == round(0.5 / math.log(2), 4)
    assert (found["acceptance_rate"], found["predicted_rate"], found["brier"]) == (0.75, 0.5, 0.5)
