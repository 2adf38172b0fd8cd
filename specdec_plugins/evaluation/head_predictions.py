"""Predictions of a trained acceptance head on a data set, and their outcomes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import torch
from fairseq.dataclass.configs import FairseqConfig
from omegaconf import OmegaConf
from torch import Tensor
from tqdm import tqdm

from specdec_plugins.checkpoints.head_file import load_trained_head
from specdec_plugins.criterions.acceptance_labels import AcceptanceLabeller, LabelledBlocks
from specdec_plugins.decoding.acceptance import Scoring, choose_rule
from specdec_plugins.evaluation.calibration import Predictions
from specdec_plugins.files.errors import CheckpointError, InferenceError
from specdec_plugins.host.fairseq_types import Sample
from specdec_plugins.models.acceptance_head import AcceptanceHead, fingerprint
from specdec_plugins.tasks.specdec_config import TranslationSpecdecConfig
from specdec_plugins.tasks.translation_specdec import TranslationSpecdecTask


class TrainedHead:
    """A checkpoint of ``fairseq-train --arch acceptance_head``, with the pair that it is for."""

    def __init__(self, path: str, **overrides: str | None) -> None:
        """Load the head, and the models and data that it was trained with.

        Args:
            overrides: ``data``, ``AR_path`` and ``drafter`` if they have moved since.
        """
        self.head, cfg = load_trained_head(path)
        moved = {name: value for name, value in overrides.items() if value is not None}
        drafter_path = moved.pop("drafter", getattr(cfg["model"], "drafter", ""))
        options = {**vars(cfg["task"]), **moved}
        names = TranslationSpecdecConfig.__dataclass_fields__
        # Some of the task's options follow those of fairseq's other groups.
        groups = OmegaConf.structured(FairseqConfig)
        groups.task = OmegaConf.structured(TranslationSpecdecConfig)
        groups.task.update({name: value for name, value in options.items() if name in names})
        config = groups.task
        folders = [Path(folder) for folder in str(config.data).split(os.pathsep)]
        data = [("--data", path) for folder in folders for path in folder.glob("*")]
        models = [("--drafter", Path(drafter_path)), ("--AR-path", Path(config.AR_path))]
        self.files = [*models, *data]
        """All files that are read, each with the flag that can name it."""
        if not folders[0].is_dir():
            raise InferenceError(f"{folders[0]}: no such folder; name binarised text with --data")
        for flag, file in models:
            if not file.is_file():
                raise InferenceError(f"{file}: no such file; say where it is now with {flag}")
        self.task = TranslationSpecdecTask.setup_task(config)
        drafter, settings = self.task.load_drafter(drafter_path), self.head.settings
        if fingerprint(drafter) != settings.drafter:
            raise CheckpointError(
                f"{drafter_path}: not the drafter that {path} was trained for; name that one "
                "with --drafter"
            )
        self.labeller = AcceptanceLabeller(
            drafter,
            self.task.verifier,
            Scoring(
                choose_rule(settings.rule), settings.rule_temperature, settings.repetition_penalty
            ),
            settings.block_size,
            self.task.target_dictionary.pad(),
        )

    def calibrated(self, temperature: float, bias: float) -> AcceptanceHead:
        """Return the head with logits divided by ``temperature``, then ``bias`` added."""
        settings = replace(self.head.settings, temperature=temperature, bias=bias)
        head = AcceptanceHead(settings)
        head.load_state_dict({**self.head.state_dict(), "_extra_state": settings.to_file()})
        return head

    @torch.no_grad()
    def predict(self, subset: str, max_tokens: int = 2000, bar: bool = False) -> Predictions:
        """Return predictions for the blocks that decoding ``subset``'s targets would draft.

        Those are the first block of each sentence and then always the block after the tokens that
        the last block committed.

        Args:
            bar: show progress on standard error.
        """
        self.task.load_dataset(subset)
        batches = self.task.get_batch_iterator(
            self.task.dataset(subset),
            max_tokens=max_tokens,
            max_positions=self.task.max_positions(),
            ignore_invalid_inputs=True,
        ).next_epoch_itr(shuffle=False)
        shown = tqdm(batches, desc=subset, unit="batch", leave=False, disable=not bar)
        parts = [self._predict(sample) for sample in shown]
        return Predictions(*(torch.cat(column) for column in zip(*parts)))

    def _predict(self, sample: Sample) -> tuple[Tensor, ...]:
        target = sample["target"]
        last = target.ne(self.labeller.padding).sum(1) - 1
        cuts = torch.minimum(torch.arange(target.size(1), device=target.device), last[:, None])
        blocks = self.labeller(sample["net_input"], target, cuts, sample["id"])
        reached = _reached(blocks, last, len(self.task.language_tokens.forced))
        logits = self.head.logits(blocks.states[reached], blocks.confidences[reached])
        return logits, blocks.survived[reached], blocks.decided[reached], blocks.open[reached]


def _reached(blocks: LabelledBlocks, last: Tensor, first: int) -> Tensor:
    """Return ``(batch, blocks)`` True for blocks that decoding drafts; there is a block after
    every cut.

    Args:
        last: ``(batch,)`` each sentence's largest cut.
        first: the smallest cut, after the forced tokens.
    """
    count = blocks.cuts.size(1)
    # By cut, in ascending order, and one more for all positions past a sentence's end.
    following = (blocks.cuts + blocks.accepted + 1).flip(1).clamp(max=count)
    at = last.new_zeros(len(last), count + 1)
    at[:, first] = 1
    for cut in range(count):
        at.scatter_add_(1, following[:, cut : cut + 1], at[:, cut : cut + 1].clone())
    inside = torch.arange(count, device=last.device) <= last[:, None]
    return (at[:, :count].bool() & inside).flip(1)
