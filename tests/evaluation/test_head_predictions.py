"""The blocks that a head is judged by: those that decoding drafts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from dummy_data import run_train
from trained import Trained

from specdec_plugins.decoding.build import build_generator
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.evaluation.calibration import TrainedHead


def test_predictions_are_of_the_blocks_that_decoding_drafts(
    trained: Trained, tmp_path: Path
) -> None:
    """On the verifier's own output, strict decoding drafts these very blocks."""
    save = tmp_path / "strict"
    run_train(trained.data, save, f"{trained.head_flags} --max-update 1")
    head = TrainedHead(str(save / "checkpoint_last.pt"))
    head.task.load_dataset("valid")
    dataset = head.task.dataset("valid")

    def decoded(rows: list[int]) -> tuple[SpeculativeGenerator, Any, list[torch.Tensor]]:
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
