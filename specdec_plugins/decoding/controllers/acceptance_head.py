"""``acceptance-head``: cut where a rejection has become too likely."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_plugins.decoding.controllers.base import Bounds, Controller, Needs
from specdec_plugins.decoding.controllers.registry import (
    ACCEPTANCE_HEAD,
    ControllerOptions,
    Head,
    Parts,
    Policy,
    Style,
    register_policy,
)
from specdec_plugins.decoding.drafts import ChainDraft, Draft
from specdec_plugins.decoding.options import Option

STOP_THRESHOLD = Option(
    "stop_threshold", 0.7, "acceptance-head: cut where a rejection is more probable than this",
    least=0, most=1, sweep=(0.1, 0.3, 0.5, 0.7, 0.9), axis="threshold",
)  # fmt: skip


class AcceptanceHead(Controller):
    """Of the head's probabilities p_i, slots are verified as long as ``1 - p_1 p_2 … p_i``, the
    probability that one of them is rejected, is at most the threshold (SpecDec++, Huang et al.,
    COLM 2025, §3).
    """

    name = "acceptance-head"

    def __init__(self, bounds: Bounds, head: Head, threshold: float) -> None:
        self.needs = Needs(bounds.most, confidences=True)
        self._bounds = bounds
        self._head = head
        # A tensor is compared sooner than a number.
        self._least = torch.tensor(1 - threshold, dtype=torch.float64)

    def verify_lengths(self, draft: Draft) -> Tensor:
        """The slots before the first risky one."""
        assert isinstance(draft, ChainDraft)
        self.predicted = self._head(draft.states, draft.confidences)
        survival = self.predicted.cumprod(-1)
        lengths = (survival >= self._least).sum(-1)
        return lengths.clamp_(self._bounds.least) if self._bounds.least else lengths


def _build(options: ControllerOptions, parts: Parts) -> AcceptanceHead:
    assert parts.head is not None
    return AcceptanceHead(parts.bounds, parts.head, options[STOP_THRESHOLD])


register_policy(
    Policy(
        "acceptance-head",
        "cut where a rejection becomes likely",
        build=_build,
        options=(STOP_THRESHOLD, ACCEPTANCE_HEAD),
        head=lambda options: "needed",
        styles={"acceptance-head": Style("#d62728", "^")},
        rank=40,
    )
)
