"""``confidence``: cut before the first slot that the drafter itself finds unlikely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from specdec_plugins.decoding.controllers.base import Bounds, Controller, Needs
from specdec_plugins.decoding.controllers.policy import (
    DraftingPolicy,
    Parts,
    register_policy,
)
from specdec_plugins.decoding.drafts import ChainDraft, Draft
from specdec_plugins.decoding.options import option
from specdec_plugins.decoding.step_result import StepResult


class Confidence(Controller):
    """The probability is the drafter's own of the token it drafted; for a drafter with a previous
    token head it is one among the slot's candidates.

    With ``refit`` the threshold follows the slots that were verified last: :func:`best_threshold`,
    asked every so many steps.
    """

    name = "confidence"
    RECENT = 256
    """Slots that the threshold is fitted to."""
    PERIOD = 8
    """Steps from one fit to the next."""

    def __init__(self, bounds: Bounds, threshold: float, refit: bool = False) -> None:
        self.needs = Needs(bounds.most, confidences=True)
        self.threshold = threshold
        self._bounds = bounds
        self._refit = refit
        self._steps = 0
        self._confidences: Tensor | None = None
        self._recent: list[tuple[float, bool]] = []

    def verify_lengths(self, draft: Draft) -> Tensor:
        """Return the slots before the first unlikely one."""
        assert isinstance(draft, ChainDraft)
        confidences = draft.confidences
        self._confidences = confidences
        likely = (confidences >= self.threshold).long().cumprod(-1).sum(-1)
        return likely.clamp(self._bounds.least, self._bounds.most)

    def observe(self, result: StepResult) -> list[int]:
        if self._refit and self._confidences is not None:
            self._note(self._confidences.tolist(), result)
        return super().observe(result)

    def _note(self, confidences: list[list[float]], result: StepResult) -> None:
        """Keep the newest slots that were judged, and whether they were accepted."""
        for row, accepted, rejected in zip(confidences, result.accepted, result.rejected):
            self._recent += [(p, True) for p in row[:accepted]]
            self._recent += [(p, False) for p in row[accepted : accepted + rejected]]
        self._recent = self._recent[-self.RECENT :]
        self._steps += 1
        if self._steps % self.PERIOD == 0 and self._recent:
            self.threshold = best_threshold(self._recent, self.threshold)


def best_threshold(judged: list[tuple[float, bool]], default: float, weight: float = 3.0) -> float:
    """Return the probability from which on to verify slots: least false accepts + 3 false rejects.

    Both are rates: of the rejected slots those at or above the threshold, of the accepted slots
    those below it. That is the point of the ROC curve which Transformers' assisted generation takes
    for its ``assistant_confidence_threshold``.

    Args:
        judged: probabilities of slots, and whether they were accepted.
        default: the answer where all slots have the same fate.
        weight: of the false rejects.
    """
    probabilities, accepted = (np.array(column) for column in zip(*judged))
    if accepted.all() or not accepted.any():
        return default
    # From the highest on; where several are best, the highest.
    thresholds = np.unique(probabilities)[::-1]
    above = probabilities[None] >= thresholds[:, None]
    false_accepts = above[:, ~accepted].mean(1)
    false_rejects = 1 - above[:, accepted].mean(1)
    return float(thresholds[(false_accepts + weight * false_rejects).argmin()])


@register_policy
@dataclass(frozen=True, kw_only=True)
class ConfidencePolicy(DraftingPolicy):
    """See :class:`Confidence`."""

    name: ClassVar[str] = "confidence"
    help: ClassVar[str] = "cut at the first unlikely slot"
    rank: ClassVar[int] = 30

    confidence_threshold: float = option(
        0.4,
        "confidence: cut at the first slot less probable than this",
        least=0,
        most=1,
        sweep=(0.1, 0.3, 0.5, 0.7, 0.9),
        axis="threshold",
    )
    refit_threshold: bool = option(
        False,
        "confidence: fit the threshold to what was accepted last, of all sentences: relaxed output "
        "then depends on them",
    )

    @property
    def looks_around(self) -> bool:
        return self.refit_threshold

    def build(self, parts: Parts) -> Confidence:
        return Confidence(parts.bounds, self.confidence_threshold, self.refit_threshold)
