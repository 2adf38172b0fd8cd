"""Calibration of a trained acceptance head: predictions, metrics, correction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from fairseq.dataclass.configs import FairseqConfig
from omegaconf import OmegaConf
from sklearn.calibration import calibration_curve
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import Tensor
from tqdm import tqdm

from specdec_plugins.checkpoints.head_file import load_trained_head
from specdec_plugins.criterions.acceptance_labels import AcceptanceLabeller, LabelledBlocks
from specdec_plugins.decoding.acceptance import Scoring, choose_rule
from specdec_plugins.evaluation.plots import COLORS, GREY
from specdec_plugins.files.errors import CheckpointError
from specdec_plugins.host.fairseq_types import Sample
from specdec_plugins.models.acceptance_head import fingerprint
from specdec_plugins.tasks.specdec_config import TranslationSpecdecConfig
from specdec_plugins.tasks.translation_specdec import TranslationSpecdecTask

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS = 15
#: The highest temperature that is fitted: it leaves nothing of a logit.
HOTTEST = 1e9


@dataclass(frozen=True)
class Predictions:
    """An acceptance head's predictions for the slots of blocks, and the outcome of each slot."""

    #: ``(blocks, slots)`` log-odds that a slot is accepted if all before it are.
    logits: Tensor
    #: ``(blocks, slots)`` True where it and all before it were accepted.
    survived: Tensor
    #: ``(blocks, slots)`` True where all before it were accepted.
    decided: Tensor
    #: ``(blocks, slots)`` False after an accepted EOS.
    open: Tensor

    def at(self, temperature: float, bias: float) -> Predictions:
        """Return the same with logits divided by ``temperature``, then ``bias`` added."""
        return replace(self, logits=self.logits / temperature + bias)

    @property
    def token(self) -> Tensor:
        """``(blocks, slots)`` probabilities that a token is accepted if all before it are."""
        return self.logits.float().sigmoid()

    @property
    def survival(self) -> Tensor:
        """``(blocks, slots)`` probabilities that a token and all before it are accepted."""
        return self.token.cumprod(-1)


def metrics(predicted: Tensor, happened: Tensor, bins: int = BINS) -> dict[str, float]:
    """Return how good ``(cases,)`` predictions are; NaN is a metric of nothing.

    ``auroc`` is the probability that a case that happened was predicted higher than a case that did
    not. ``ece`` is the mean distance of prediction and observed rate over bins of equal width (Guo
    et al., *On Calibration of Modern Neural Networks*, ICML 2017, section 2), ``brier`` the mean
    squared error (Brier 1950).
    """
    p = predicted.double()
    y = happened.double()
    count, predictions, events = (
        np.histogram(p, bins, (0, 1), weights=weights)[0] for weights in (None, p, y)
    )
    gaps = np.abs(predictions - events)
    squares = (p - y).square()
    return {
        "slots": len(p),
        "observed": float(y.mean()),
        "predicted": float(p.mean()),
        "auroc": float(roc_auc_score(y, p)) if 0 < y.sum() < len(y) else math.nan,
        "ece": gaps.sum() / count.sum() if count.any() else math.nan,
        "brier": float(squares.mean()),
    }


def fit_calibration(predictions: Predictions) -> tuple[float, float]:
    """Return the temperature and bias with the least cross entropy on decided slots.

    Platt scaling (Platt 1999). The bias corrects a head that was trained on easier text.
    """
    logits = predictions.logits[predictions.decided]
    happened = predictions.survived[predictions.decided]
    if happened.all() or not happened.any():
        raise ValueError("calibration needs both accepted and rejected tokens; use more text")
    # Unpenalised; the usual tolerance, 1e-4, is too much for logits that are all small.
    model = LogisticRegression(C=math.inf, tol=1e-8, max_iter=1000)
    model.fit(logits[:, None].double(), happened)
    slope = float(model.coef_[0, 0])
    if slope < 1 / HOTTEST:
        # Slots with higher logits were accepted less, which a temperature cannot turn round.
        rate = happened.double().mean()
        return HOTTEST, float(rate.logit())
    return 1 / slope, float(model.intercept_[0])


def cases(predictions: Predictions) -> dict[str, tuple[Tensor, Tensor]]:
    """Return predicted probabilities ``(cases,)`` and whether it happened, of ``token`` and of
    ``survival``."""
    kinds = {
        "token": (predictions.token, predictions.decided),
        "survival": (predictions.survival, predictions.open),
    }
    return {
        name: (predicted[where], predictions.survived[where])
        for name, (predicted, where) in kinds.items()
    }


def report(predictions: Predictions) -> dict[str, dict[str, float]]:
    """Return the metrics of ``token`` and ``survival``, and of survival by slot.

    ``token`` is of a token's probability if all before it are accepted, over decided slots;
    ``survival`` of the running product, over slots before the sentence's end.
    """
    rows = {name: metrics(p, y) for name, (p, y) in cases(predictions).items()}
    survival = predictions.survival
    for slot, (p, h, where) in enumerate(
        zip(survival.T, predictions.survived.T, predictions.open.T)
    ):
        rows[f"survival of slot {slot}"] = metrics(p[where], h[where])
    return rows


def reliability(heads: Mapping[str, Predictions]) -> Figure:
    """Draw observed rates against predicted ones, of single tokens and of survival.

    The diagrams of Guo et al., *On Calibration of Modern Neural Networks* (ICML 2017), figure 1,
    drawn as curves.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 6), layout="constrained")
    for axes, kind in zip(figure.subplots(1, 2), ("token", "survival")):
        axes.plot((0, 1), (0, 1), color=GREY, linestyle="dotted")
        for (name, predictions), color in zip(heads.items(), COLORS):
            predicted, happened = cases(predictions)[kind]
            observed, centres = calibration_curve(happened, predicted, n_bins=BINS)
            axes.plot(centres, observed, marker="o", color=color, label=name)
        axes.set_title(kind)
        axes.set_xlabel("predicted probability")
        axes.set_ylabel("observed rate")
        axes.legend()
    return figure


class TrainedHead:
    """A checkpoint of ``fairseq-train --arch acceptance_head``, with the pair that it is for."""

    def __init__(self, path: str, **overrides: str | None) -> None:
        """Load the head, and the models and data that it was trained with.

        ``overrides`` are ``data``, ``AR_path`` and ``drafter``, if they have moved since.
        """
        self.head, cfg = load_trained_head(path)
        moved = {name: value for name, value in overrides.items() if value is not None}
        drafter_path = moved.pop("drafter", getattr(cfg["model"], "drafter", ""))
        options = {**vars(cfg["task"]), **moved}
        # Some of the task's options follow those of fairseq's other groups.
        groups = OmegaConf.structured(FairseqConfig)
        groups.task = OmegaConf.structured(TranslationSpecdecConfig)
        known = options.keys() & TranslationSpecdecConfig.__dataclass_fields__
        groups.task.update({name: options[name] for name in known})
        self.task = TranslationSpecdecTask.setup_task(groups.task)
        settings = self.head.settings
        drafter = self.task.load_drafter(drafter_path)
        if fingerprint(drafter) != settings.drafter:
            raise CheckpointError(
                f"{drafter_path}: not the drafter that {path} was trained for; name that one with "
                "--drafter"
            )
        scoring = Scoring(
            choose_rule(settings.rule), settings.rule_temperature, settings.repetition_penalty
        )
        self.labeller = AcceptanceLabeller(drafter, scoring, settings.block_size)

    @torch.no_grad()
    def predict(self, subset: str) -> Predictions:
        """Return predictions for the blocks that decoding ``subset``'s targets would draft.

        Those are the first block of each sentence and then always the block after the tokens that
        the last block committed.
        """
        self.task.load_dataset(subset)
        batches = self.task.get_batch_iterator(
            self.task.dataset(subset),
            max_tokens=2000,
            max_positions=self.task.max_positions(),
            ignore_invalid_inputs=True,
        )
        epoch = batches.next_epoch_itr(shuffle=False)
        shown = tqdm(epoch, desc=subset, unit="batch", leave=False, disable=None)
        columns = zip(*map(self._predict, shown))
        return Predictions(*map(torch.cat, columns))

    def _predict(self, sample: Sample) -> tuple[Tensor, ...]:
        target = sample["target"]
        is_token = target.ne(self.labeller.padding)
        last = is_token.sum(1) - 1
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
    following = blocks.cuts + blocks.accepted + 1
    following = following.flip(1).clamp(max=count)
    at = last.new_zeros(len(last), count + 1)
    at[:, first] = 1
    for cut in range(count):
        here = at[:, cut, None].clone()
        at.scatter_add_(1, following[:, cut, None], here)
    inside = torch.arange(count, device=last.device) <= last[:, None]
    reached = at[:, :count].bool() & inside
    return reached.flip(1)
