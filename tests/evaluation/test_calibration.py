"""Calibration metrics, and the predictions of a head that they are made of."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from helpers.models.dummy_data import run_train
from helpers.models.trained import Trained
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specdec_plugins.decoding.build import build_generator
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.evaluation.calibration import (
    Predictions,
    TrainedHead,
    fit_calibration,
    metrics,
    reliability,
    report,
)
from specdec_plugins.host.fairseq_types import Sample

CASES = st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1, max_size=40)


def tensors(cases: list[tuple[int, bool]]) -> tuple[Tensor, Tensor]:
    return torch.tensor([p / 20 for p, _ in cases]), torch.tensor([y for _, y in cases])


def sampled(rows: int, slots: int, temperature: float = 1.0, bias: float = 0.0) -> Predictions:
    """Blocks that come out as the logits, with this temperature and bias, say."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, slots, generator=generator) * 2 + 1
    uniforms = torch.rand(rows, slots, generator=generator)
    accepted = uniforms < (logits / temperature + bias).sigmoid()
    survived = accepted.long().cumprod(-1).bool()
    decided = torch.cat([torch.ones(rows, 1, dtype=torch.bool), survived[:, :-1]], 1)
    return Predictions(logits, survived, decided, torch.ones(rows, slots, dtype=torch.bool))


class TestMetrics:
    def test_by_hand(self) -> None:
        """Two bins: 0.2 and 0.4 of which one happened, 0.9 of which all did."""
        found = metrics(torch.tensor([0.2, 0.4, 0.9]), torch.tensor([True, False, True]), bins=2)
        assert found["ece"] == pytest.approx((2 * abs(0.3 - 0.5) + abs(0.9 - 1.0)) / 3)
        assert found["brier"] == pytest.approx((0.64 + 0.16 + 0.01) / 3)
        # Certainty is in the last bin.
        found = metrics(torch.tensor([1.0, 0.95]), torch.tensor([False, True]), bins=10)
        assert found["ece"] == pytest.approx(0.475)
        # Two of 2 x 2 pairs are in order, one is not, one is a tie.
        p, y = torch.tensor([0.3, 0.6, 0.6, 0.1]), torch.tensor([False, True, False, True])
        assert metrics(p, y)["auroc"] == pytest.approx((1 + 0.5 + 0 + 0) / 4)

    def test_nothing_to_compare(self) -> None:
        nothing = metrics(torch.zeros(0), torch.zeros(0).bool())
        assert all(math.isnan(nothing[name]) for name in ("ece", "brier", "auroc"))
        for alike in (True, False):
            found = metrics(torch.tensor([0.5, 0.5]), torch.tensor([alike, alike]))
            assert math.isnan(found["auroc"])
            assert found["brier"] == 0.25

    @given(CASES, st.integers(1, 30))
    def test_ece_is_between_the_mean_bias_and_the_mean_distance(
        self, cases: list[tuple[int, bool]], bins: int
    ) -> None:
        p, y = tensors(cases)
        found = metrics(p, y, bins)["ece"]
        assert abs(float((p - y.float()).mean())) <= found + 1e-6
        assert found <= float((p - y.float()).abs().mean()) + 1e-6


class TestFit:
    @pytest.mark.parametrize("bias", [0.0, -0.7])
    @pytest.mark.parametrize("temperature", [0.4, 1.0, 2.5])
    def test_a_known_temperature_and_bias_are_found(self, temperature: float, bias: float) -> None:
        found = fit_calibration(sampled(20000, 6, temperature, bias))
        assert found[0] == pytest.approx(temperature, rel=0.05)
        assert found[1] == pytest.approx(bias, abs=0.05)

    def test_decided_slots_alone_count(self) -> None:
        predictions = sampled(500, 6)
        noise = torch.where(predictions.decided, predictions.logits, torch.tensor(50.0))
        other = Predictions(noise, predictions.survived, predictions.decided, predictions.open)
        assert fit_calibration(other) == pytest.approx(fit_calibration(predictions))

    @pytest.mark.parametrize("logits", [[3.0, 2.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0] * 4])
    def test_logits_that_tell_nothing_are_given_the_rate(self, logits: list[float]) -> None:
        """A temperature cannot turn round a head that is surer where less is accepted."""
        survived, everywhere = torch.tensor([[0, 1, 1, 1]]).T.bool(), torch.ones(4, 1).bool()
        given = Predictions(torch.tensor([logits]).T, survived, everywhere, everywhere)
        temperature, bias = fit_calibration(given)
        assert 0 < temperature < math.inf
        found = given.at(temperature, bias).logits.sigmoid()
        assert found.flatten().tolist() == pytest.approx([0.75] * 4)

    @pytest.mark.parametrize("accepted", [True, False])
    def test_nothing_to_fit(self, accepted: bool) -> None:
        all_alike = torch.full((5, 1), accepted)
        everywhere = torch.ones(5, 1).bool()
        with pytest.raises(ValueError, match="both accepted and rejected"):
            fit_calibration(Predictions(torch.randn(5, 1), all_alike, everywhere, everywhere))


class TestReport:
    def test_slots_are_counted_where_they_say_something(self) -> None:
        """One block is rejected in its second slot, one ends its sentence in the first."""
        survived = torch.tensor([[1, 0, 0], [1, 0, 0]]).bool()
        decided = torch.tensor([[1, 1, 0], [1, 0, 0]]).bool()
        unended = torch.tensor([[1, 1, 1], [1, 0, 0]]).bool()
        found = report(Predictions(torch.zeros(2, 3), survived, decided, unended))
        assert (found["token"]["slots"], found["survival"]["slots"]) == (3, 4)
        assert [found[f"survival of slot {slot}"]["slots"] for slot in range(3)] == [2, 1, 1]
        assert found["token"]["observed"] == pytest.approx(2 / 3)
        assert found["survival"]["predicted"] == pytest.approx((0.5 + 0.5 + 0.25 + 0.125) / 4)

    def test_true_probabilities_are_calibrated(self) -> None:
        found = report(sampled(20000, 6))
        assert found["token"]["ece"] < 0.01
        assert found["survival"]["ece"] < 0.01
        assert found["token"]["auroc"] > 0.7


def test_predictions_are_of_the_blocks_that_decoding_drafts(
    trained: Trained, tmp_path: Path
) -> None:
    """On the verifier's own output, strict decoding drafts these very blocks."""
    save = tmp_path / "strict"
    run_train(trained.data, save, f"{trained.head_flags} --max-update 1")
    head = TrainedHead(str(save / "checkpoint_last.pt"))
    head.task.load_dataset("valid")
    dataset = head.task.dataset("valid")

    def decoded(rows: list[int]) -> tuple[SpeculativeGenerator, Sample, list[torch.Tensor]]:
        drafter = head.labeller.drafter.model
        generator = build_generator(head.task.verifier, drafter, head.task.target_dictionary)
        sample = dataset.collater([dataset[row] for row in rows])
        return generator, sample, [h[0]["tokens"] for h in generator.generate(None, sample)]

    # An end that the maximum length brings is none of the verifier's own.
    _, sample, outputs = decoded(list(range(len(dataset))))
    rows = [row for row, tokens in zip(sample["id"].tolist(), outputs) if len(tokens) < 100]
    assert len(rows) > 7
    generator, sample, outputs = decoded(rows)
    sample["target"] = torch.nn.utils.rnn.pad_sequence(
        outputs, batch_first=True, padding_value=head.labeller.padding
    ).clone()
    _, survived, slots, _ = head._predict(sample)
    accepted, decided = int(survived.sum()), int(slots.sum())
    statistics = generator.statistics
    assert (len(survived), accepted) == (statistics.steps, statistics.accepted_tokens)
    assert accepted < decided <= accepted + statistics.steps


def test_the_reliability_diagram_shows_rates_in_bins() -> None:
    """Of slots predicted at 1/2 a quarter came out; calibrated they lie on the diagonal."""
    pytest.importorskip("matplotlib", reason="matplotlib, of the extra [plot], is not here")
    survived = torch.tensor([[True], [False], [False], [False]])
    every = torch.ones(4, 1, dtype=torch.bool)
    uncalibrated = Predictions(torch.zeros(4, 1), survived, every, every)
    temperature, bias = fit_calibration(uncalibrated)
    figure = reliability({"before": uncalibrated, "after": uncalibrated.at(temperature, bias)})
    assert [axes.get_title() for axes in figure.axes] == ["token", "survival"]
    for axes in figure.axes:
        diagonal, before, after = [line.get_xydata().tolist() for line in axes.lines]
        assert diagonal == [[0, 0], [1, 1]]
        assert before == [pytest.approx([0.5, 0.25])]
        assert after == [pytest.approx([0.25, 0.25], abs=1e-4)]
