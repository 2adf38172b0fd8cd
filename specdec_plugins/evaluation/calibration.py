"""Whether predicted probabilities of acceptance come true: metrics, correction, diagram."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_plugins.whole_file import whole_file

BINS = 15


@dataclass(frozen=True)
class Predictions:
    """What an acceptance head said of the slots of blocks, and what came of them."""

    logits: Tensor
    """``(blocks, slots)`` log-odds that a slot is accepted if all before it are."""
    survived: Tensor
    """``(blocks, slots)`` True where it and all before it were accepted."""
    decided: Tensor
    """``(blocks, slots)`` True where all before it were accepted."""
    open: Tensor
    """``(blocks, slots)`` False after an accepted EOS."""

    def at(self, temperature: float, bias: float) -> Predictions:
        """The same with logits divided by ``temperature``, then ``bias`` added."""
        logits = self.logits / temperature + bias
        return Predictions(logits, self.survived, self.decided, self.open)


def expected_calibration_error(predicted: Tensor, happened: Tensor, bins: int = BINS) -> float:
    """Mean distance of predicted probability and observed rate over bins of equal width.

    ECE of Guo et al., *On Calibration of Modern Neural Networks*, ICML 2017, §2; NaN of nothing.
    """
    if not len(predicted):
        return math.nan
    count, mean, rate = _binned(predicted, happened, bins)
    return float((count * (mean - rate).abs()).sum() / len(predicted))


def brier_score(predicted: Tensor, happened: Tensor) -> float:
    """Mean squared error of the probabilities (Brier 1950); NaN of nothing."""
    return float((predicted.double() - happened.double()).square().mean())


def auroc(predicted: Tensor, happened: Tensor) -> float:
    """Probability that a random case that happened was given more than one that did not.

    Ties count half: the Mann-Whitney U statistic over the number of pairs. NaN where all or
    nothing happened.
    """
    happened = happened.bool()
    positives, negatives = int(happened.sum()), int((~happened).sum())
    if not positives or not negatives:
        return math.nan
    values, places = torch.unique(predicted.double(), return_inverse=True)
    counts = torch.bincount(places, minlength=len(values)).double()
    ranks = counts.cumsum(0) - (counts - 1) / 2
    u = ranks[places][happened].sum() - positives * (positives + 1) / 2
    return float(u / (positives * negatives))


def fit_calibration(predictions: Predictions) -> tuple[float, float]:
    """The temperature and bias with the least cross entropy on decided slots.

    Platt scaling (Platt 1999); Guo et al. 2017, §4.2, keep the temperature alone. The bias is what
    corrects a head that learned on text that is easier for its drafter than other text.

    Raises:
        ValueError: there are no decided slots, or all or none of them were accepted.
    """
    logits = predictions.logits[predictions.decided].double()
    happened = predictions.survived[predictions.decided].double()
    if not 0 < happened.sum() < len(happened):
        raise ValueError("calibration needs both accepted and rejected tokens; use more text")
    # Minus the temperature's logarithm, so that it stays above 0; and the bias.
    fitted = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer: Any = torch.optim.LBFGS([fitted], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        scaled = logits * fitted[0].exp() + fitted[1]
        loss = F.binary_cross_entropy_with_logits(scaled, happened)
        fitted.grad = torch.autograd.grad(loss, fitted)[0]
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    return float((-fitted.detach()[0]).exp()), float(fitted.detach()[1])


def report(predictions: Predictions) -> dict[str, Any]:
    """All metrics: of all slots, and by slot.

    ``token`` is about the probability of a token given that all before it are accepted, over
    decided slots; ``survival`` about the running product, over slots before the sentence's end.
    """
    token = predictions.logits.float().sigmoid()
    survival = token.cumprod(-1)
    result: dict[str, Any] = {}
    for name, predicted, where in (
        ("token", token, predictions.decided),
        ("survival", survival, predictions.open),
    ):
        result[name] = _metrics(predicted[where], predictions.survived[where])
        result[f"{name}_by_slot"] = [
            _metrics(predicted[where[:, slot], slot], predictions.survived[where[:, slot], slot])
            for slot in range(predicted.size(1))
        ]
    return result


def _metrics(predicted: Tensor, happened: Tensor) -> dict[str, float]:
    return {
        "slots": len(predicted),
        "observed": float(happened.float().mean()),
        "predicted": float(predicted.mean()),
        "auroc": auroc(predicted, happened),
        "ece": expected_calibration_error(predicted, happened),
        "brier": brier_score(predicted, happened),
    }


def _binned(predicted: Tensor, happened: Tensor, bins: int) -> tuple[Tensor, Tensor, Tensor]:
    """Cases, mean prediction and observed rate of the bins that hold any."""
    place = (predicted * bins).long().clamp(max=bins - 1)
    count = torch.bincount(place, minlength=bins).double()
    mean = torch.bincount(place, predicted.double(), bins)
    rate = torch.bincount(place, happened.double(), bins)
    held = count > 0
    return count[held], mean[held] / count[held], rate[held] / count[held]


def check_plotting() -> None:
    """
    Raises:
        ValueError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise ValueError("--plot needs matplotlib: pip install matplotlib")


def plot_reliability(predictions: Predictions, path: str | os.PathLike[str], title: str) -> None:
    """Write a PNG: the reliability diagrams of tokens and of survival, and survival by slot.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    # Only here: it is an extra. Without pyplot, since that looks for a display.
    from matplotlib.figure import Figure

    token = predictions.logits.float().sigmoid()
    survival = token.cumprod(-1)
    figure = Figure(figsize=(14, 4.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for axes, name, predicted, where in (
        (left, "token, given all before it", token, predictions.decided),
        (middle, "survival", survival, predictions.open),
    ):
        count, mean, rate = _binned(predicted[where], predictions.survived[where], BINS)
        axes.plot([0, 1], [0, 1], color="0.6", linewidth=1)
        axes.bar(mean, count / count.sum(), width=0.03, color="0.85", label="share of slots")
        axes.plot(mean, rate, marker="o", label="observed rate")
        axes.set(xlabel="predicted probability", ylabel="observed rate", title=name)
        axes.legend(loc="upper left")
    slots = range(1, token.size(1) + 1)
    by_slot = report(predictions)["survival_by_slot"]
    right.plot(slots, [m["observed"] for m in by_slot], marker="o", label="observed")
    right.plot(slots, [m["predicted"] for m in by_slot], marker="x", label="predicted")
    right.set(xlabel="slot", ylabel="probability", ylim=(0, 1), title="mean survival by slot")
    right.legend()
    figure.suptitle(title)
    with whole_file(path) as file:
        figure.savefig(file, format="png", dpi=120)
