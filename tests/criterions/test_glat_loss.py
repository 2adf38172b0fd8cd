"""``glat_loss`` against a cross entropy written out slot by slot."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from conftest import make_task, make_verifier
from fairseq.logging import metrics
from helpers.models.drafters import make_block, make_causal, make_targets, slot_logits
from torch import Tensor

from specdec_plugins.criterions.glat_loss import GlatLoss, GlatLossConfig
from specdec_plugins.host.fairseq_types import Sample
from specdec_plugins.models import training_pass
from specdec_plugins.models.drafter import Drafter, DrafterOutput

PAD, EOS = 1, 2


TASK = make_task(AR_path="verifier.pt")
TASK.verifier = make_verifier().requires_grad_(False)


def criterion(smoothing: float = 0, labels: bool = False, decay: float = 0) -> GlatLoss:
    names = "label_smoothing", "verifier_labels", "slot_decay"
    return GlatLoss(TASK, GlatLossConfig(**dict(zip(names, (smoothing, labels, decay)))))


def make_sample(
    lengths: list[int], cuts: list[list[int]], ratio: float = 0.0, seed: int = 0
) -> Sample:
    source_lengths = [5, 8, 2, 6][: len(lengths)]
    target = make_targets(lengths, seed=seed + 2)
    return {
        "net_input": {
            "src_tokens": make_targets(source_lengths, seed=seed + 1).flip(1),
            "src_lengths": torch.tensor(source_lengths),
        },
        "target": target,
        "ntokens": sum(lengths),
        "cuts": torch.tensor(cuts),
        "seeds": torch.arange(len(lengths)),
        "glancing_ratio": ratio,
    }


def run_model(model: Drafter, sample: Sample) -> DrafterOutput:
    torch.manual_seed(5)
    return model(sample)


def verifier_distributions(sample: Sample) -> Tensor:
    """``(batch, length, vocab)`` of each target token, from a plain forward over the target."""
    previous = torch.cat([torch.full_like(sample["target"][:, :1], EOS), sample["target"]], dim=1)
    logits, _ = TASK.verifier(*sample["net_input"].values(), previous[:, :-1])
    return logits.softmax(-1)


def naive(
    output: DrafterOutput, smoothing: float, decay: float, labels: Tensor | None = None
) -> tuple[float, float, float]:
    """Loss, negative log-likelihood and size, by a loop over what is scored."""
    loss = nll = size = 0.0
    for row, block, slot in output.scored.nonzero().tolist():
        lprobs = slot_logits(output)[row, block, slot].double().log_softmax(-1)
        gold = int(output.blocks.gold[row, block, slot])
        assert gold != PAD
        weight = math.exp(-slot / decay) if decay else 1.0
        main = -lprobs[gold]
        nll += weight * main.item()
        if labels is not None:
            position = int(output.blocks.positions[row, block, slot])
            main = -(labels[row, position].double() * lprobs).sum()
        loss += weight * ((1 - smoothing) * main - smoothing * lprobs.mean()).item()
        size += weight
    return loss, nll, size


@pytest.mark.parametrize("decay", [0.0, 2.5])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("ratio", [0.0, 0.5])
@pytest.mark.parametrize("name", ["block", "block_causal"])
def test_loss_is_the_cross_entropy_of_scored_slots(
    name: str, ratio: float, smoothing: float, decay: float
) -> None:
    model = make_block() if name == "block" else make_causal()
    cuts = [[4], [0], [5]] if name == "block" else [[4, 1], [0, 0], [5, 3]]
    sample = make_sample([9, 1, 6], cuts, ratio)
    output = run_model(model, sample)
    assert bool((output.blocks.scored & ~output.scored).any()) == (ratio > 0)
    torch.manual_seed(5)
    loss, size, log = criterion(smoothing, decay=decay)(model, sample)
    expected = naive(output, smoothing, decay)
    assert loss.item() == pytest.approx(expected[0], rel=1e-5)
    assert size.item() == pytest.approx(expected[2], rel=1e-6)
    assert log["loss"].item() == pytest.approx(expected[0], rel=1e-5)
    assert log["nll_loss"].item() == pytest.approx(expected[1], rel=1e-5)
    assert log["sample_size"].item() == pytest.approx(expected[2], rel=1e-6)
    if not decay:
        assert size.item() == output.scored.sum().item()


def test_sentence_avg_divides_by_sentences() -> None:
    """As in fairseq's criterions; what is logged stays a mean over slots."""
    model, sample = make_causal(), make_sample([9, 1, 6], [[4, 1], [0, 0], [5, 3]])
    config = GlatLossConfig(label_smoothing=0.1, sentence_avg=True)
    results = []
    for loss in (criterion(0.1), GlatLoss(TASK, config)):
        torch.manual_seed(5)
        results.append(loss(model, sample))
    (by_slots, slots, log), (by_sentences, sentences, averaged) = results
    assert by_slots.item() == by_sentences.item()
    assert slots.item() > sentences.item() == averaged["sample_size"].item() == 3
    assert reduced([averaged]) == reduced([log])


def gradients(model: Drafter, samples: list[Sample], loss: GlatLoss) -> tuple[Any, Any]:
    """What the trainer computes over micro-batches: summed, then divided by the sample size."""
    model.zero_grad()
    logs = []
    for sample in samples:
        value, _, log = loss(model, sample)
        value.backward()
        logs.append(log)
    size = sum(log["sample_size"] for log in logs)
    return [p.grad / size for p in model.parameters() if p.requires_grad], logs


@pytest.mark.parametrize("name", ["block", "block_causal", "labels", "previous token"])
def test_chunks_of_slots_are_as_all_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss, logs and gradients; and no more logits are there at once than a chunk holds."""
    model: Any = make_block() if name == "block" else make_causal(TASK)
    if name == "previous token":
        model = make_causal(TASK, previous_token_head=True)
    cuts = [[4], [0], [5]] if name == "block" else [[4, 1], [0, 0], [5, 3]]
    sample = make_sample([9, 1, 6], cuts, ratio=0.5)
    loss = criterion(0.1, name == "labels")
    seen: list[int] = []
    made = model.decoder.slot_logits

    def watched(x: Tensor, *args: object) -> Tensor:
        seen.append(len(x))
        return made(x, *args)

    monkeypatch.setattr(model.decoder, "slot_logits", watched)
    model.train()
    torch.manual_seed(5)
    whole, (logs,) = gradients(model, [sample], loss)
    slots = max(seen)
    seen.clear()
    monkeypatch.setattr(training_pass, "CHUNK", 3 * 24 + 23)
    torch.manual_seed(5)
    chunked, (chunked_logs,) = gradients(model, [sample], loss)
    assert max(seen) == 3 < slots
    for one, other in zip(whole, chunked, strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-6)
    assert {key: float(value) for key, value in chunked_logs.items()} == pytest.approx(
        {key: float(value) for key, value in logs.items()}
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("decay", [0.0, 3.0])
@pytest.mark.parametrize("shares", [False, True])
def test_verifier_labels_are_a_soft_cross_entropy(
    shares: bool, decay: float, smoothing: float
) -> None:
    model = make_causal(TASK, share_verifier_encoder=shares)
    sample = make_sample([9, 1, 6], [[4, 7], [0, 0], [5, 2]])
    output = run_model(model, sample)
    loss, size, log = criterion(smoothing, True, decay)(model, sample)
    # The labels are the verifier's on the true prefix, whichever encoder the drafter has.
    expected = naive(output, smoothing, decay, verifier_distributions(sample))
    assert loss.item() == pytest.approx(expected[0], rel=1e-5)
    assert log["nll_loss"].item() == pytest.approx(expected[1], rel=1e-5)
    assert size.item() == pytest.approx(expected[2], rel=1e-6)
    hard = criterion(smoothing, False, decay)(model, sample)[0]
    assert abs(hard.item() - loss.item()) > 1e-3


def reduced(logs: list[dict[str, Any]]) -> dict[str, float]:
    with metrics.aggregate(new_root=True) as aggregator:
        GlatLoss.reduce_metrics(logs)
    return {key: float(value) for key, value in aggregator.get_smoothed_values().items()}


def test_logged_means() -> None:
    sample = make_sample([9, 1, 6], [[4, 5], [0, 0], [2, 3]], ratio=0.5)
    model = make_causal()
    # Let some be right, in the first blocks: they follow from prefixes that stay as they are.
    output = run_model(model, {**sample, "glancing_ratio": 0.0})
    for row, slot in ((0, 0), (2, 0)):
        predicted = slot_logits(output)[row, 0, slot, 4:].argmax() + 4
        sample["target"][row, sample["cuts"][row, 0] + slot] = predicted
    torch.manual_seed(5)
    _, _, log = criterion(0.1)(model, sample)
    output = run_model(model, sample)
    plain = run_model(model, {**sample, "glancing_ratio": 0.0})
    loss, nll, size = naive(output, 0.1, 0.0)
    # Accuracy counts all slots with a target, as they were before any was shown.
    correct = (slot_logits(plain).argmax(-1) == plain.blocks.gold) & plain.scored
    assert correct.any()
    found = reduced([log])
    assert found["loss"] == pytest.approx(loss / size / math.log(2), abs=6e-4)
    assert found["nll_loss"] == pytest.approx(nll / size / math.log(2), abs=6e-4)
    accuracy = correct.sum() / plain.scored.sum()
    assert found["glat_accu"] == pytest.approx(accuracy.item(), abs=6e-4)
    assert found["glat_context_p"] == 0.5
    for slot in range(4):
        share = correct[..., slot].sum() / plain.scored[..., slot].sum()
        assert found[f"acc_{slot}"] == pytest.approx(share.item(), abs=6e-4)
    # Two workers' logs, or their sum: the same means.
    summed = {key: value + value for key, value in log.items()}
    assert reduced([log, log]) == pytest.approx(found)
    assert reduced([summed]) == pytest.approx(found)


def test_nothing_scored_is_a_loss_of_zero_with_a_gradient() -> None:
    """With every wrong slot shown and none right, none is left."""
    model = make_causal()
    sample = make_sample([9, 6], [[4], [2]], ratio=1.0)
    output = run_model(model, {**sample, "glancing_ratio": 0.0})
    # Make wrong what was right. No prefix changes, so nothing else becomes right.
    sample["target"] = sample["target"].clone()
    for row, block, slot in output.glanced_correct.nonzero().tolist():
        position = output.blocks.positions[row, block, slot]
        sample["target"][row, position] = (sample["target"][row, position] - 4 + 1) % 20 + 4
    loss, size, _ = criterion(0.1)(model, sample)
    assert size.item() == loss.item() == 0
    loss.backward()
    trained = [p for p in model.parameters() if p.requires_grad]
    assert all(p.grad is not None and not p.grad.any() for p in trained)
