"""Calibration of predicted acceptance: metrics, correction, diagram."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import Tensor

from specdec_plugins.decoding.kernels import Floats
from specdec_plugins.evaluation.plots import new_figure
from specdec_plugins.files.output import JsonObject, whole_file

BINS = 15
HOTTEST = 1e9
"""The highest temperature that is fitted: it leaves nothing of a logit."""


@dataclass(frozen=True)
class Predictions:
    """An acceptance head's predictions for the slots of blocks, and the outcome of each slot."""

    logits: Tensor
    """``(blocks, slots)`` log-odds that a slot is accepted if all before it are."""
    survived: Tensor
    """``(blocks, slots)`` True where it and all before it were accepted."""
    decided: Tensor
    """``(blocks, slots)`` True where all before it were accepted."""
    open: Tensor
    """``(blocks, slots)`` False after an accepted EOS."""

    def at(self, temperature: float, bias: float) -> Predictions:
        """Return the same with logits divided by ``temperature``, then ``bias`` added."""
        return replace(self, logits=self.logits / temperature + bias)


def expected_calibration_error(predicted: Tensor, happened: Tensor, bins: int = BINS) -> float:
    """Return the mean distance of prediction and observed rate over bins of equal width.

    ECE of Guo et al., *On Calibration of Modern Neural Networks*, ICML 2017, section 2.
    """
    count, mean, rate = _binned(predicted, happened, bins)
    return float(np.average(np.abs(mean - rate), weights=count)) if len(count) else math.nan


def brier_score(predicted: Tensor, happened: Tensor) -> float:
    """Return the mean squared error of the probabilities (Brier 1950); NaN of nothing."""
    return float((predicted.double() - happened.double()).square().mean())


def auroc(predicted: Tensor, happened: Tensor) -> float:
    """Return the probability that a case that happened was predicted higher than a case that did
    not; NaN where all or nothing happened."""
    if happened.all() or not happened.any():
        return math.nan
    return float(roc_auc_score(happened.long().numpy(), predicted.double().numpy()))


def fit_calibration(predictions: Predictions) -> tuple[float, float]:
    """Return the temperature and bias with the least cross entropy on decided slots.

    Platt scaling (Platt 1999). The bias corrects a head that was trained on easier text.

    Raises:
        ValueError: there are no decided slots, or all or none of them were accepted.
    """
    logits = predictions.logits[predictions.decided].double()
    happened = predictions.survived[predictions.decided]
    if happened.all() or not happened.any():
        raise ValueError("calibration needs both accepted and rejected tokens; use more text")
    # Unpenalised; the usual tolerance, 1e-4, is too much for logits that are all small.
    model = LogisticRegression(C=math.inf, tol=1e-8, max_iter=1000)
    model.fit(logits[:, None].numpy(), happened.numpy())
    slope, bias = float(model.coef_[0, 0]), float(model.intercept_[0])
    if slope < 1 / HOTTEST:
        # Slots with higher logits were accepted less, which a temperature cannot turn round.
        return HOTTEST, float(happened.double().mean().logit())
    return 1 / slope, bias


def report(predictions: Predictions) -> JsonObject:
    """Return all metrics, of all slots and by slot.

    ``token`` is about the probability of a token if all before it are accepted, over decided slots;
    ``survival`` about the running product, over slots before the sentence's end.
    """
    result: JsonObject = {}
    for name, (predicted, where) in _predicted(predictions).items():
        happened = predictions.survived
        result[name] = _metrics(predicted[where], happened[where])
        by_slot = zip(predicted.T, happened.T, where.T)
        result[f"{name}_by_slot"] = [_metrics(p[open_], h[open_]) for p, h, open_ in by_slot]
    return result


def _predicted(predictions: Predictions) -> dict[str, tuple[Tensor, Tensor]]:
    """Return ``(blocks, slots)`` probabilities of tokens and of survival, and where they count."""
    token = predictions.logits.float().sigmoid()
    return {
        "token": (token, predictions.decided),
        "survival": (token.cumprod(-1), predictions.open),
    }


def _metrics(predicted: Tensor, happened: Tensor) -> dict[str, float]:
    return {
        "slots": len(predicted),
        "observed": float(happened.float().mean()),
        "predicted": float(predicted.mean()),
        "auroc": auroc(predicted, happened),
        "ece": expected_calibration_error(predicted, happened),
        "brier": brier_score(predicted, happened),
    }


def _binned(predicted: Tensor, happened: Tensor, bins: int) -> tuple[Floats, Floats, Floats]:
    """Return cases, mean prediction and observed rate of the bins that hold any."""
    values = predicted.double().numpy()
    count, predictions, events = (
        np.histogram(values, bins, (0, 1), weights=weights)[0]
        for weights in (None, values, happened.double().numpy())
    )
    filled = count > 0
    count = count[filled]
    return count, predictions[filled] / count, events[filled] / count


def plot_reliability(predictions: Predictions, path: str | os.PathLike[str], title: str) -> None:
    """Write a PNG of the reliability diagrams of tokens and of survival."""
    figure = new_figure((10, 4.6))
    panels = zip(figure.subplots(1, 2), _predicted(predictions).items())
    for axes, (name, (predicted, where)) in panels:
        count, mean, rate = _binned(predicted[where], predictions.survived[where], BINS)
        axes.plot([0, 1], [0, 1], color="0.6", linewidth=1)
        axes.bar(mean, count / count.sum(), width=0.03, color="0.85", label="share of slots")
        axes.plot(mean, rate, color="#0072B2", marker="o", label="observed rate")
        axes.set(xlabel="predicted probability", ylabel="observed rate", title=name)
        axes.legend(loc="upper left")
    figure.suptitle(title)
    with whole_file(path) as file:
        figure.savefig(file, format="png", dpi=120)
