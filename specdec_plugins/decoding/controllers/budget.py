"""Rows of a batch that compete for what is verified."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.decoding.arrays import Floats
from specdec_plugins.decoding.controllers.base import Bounds, Controller, Needs
from specdec_plugins.decoding.controllers.cost_aware import expected_rates
from specdec_plugins.decoding.controllers.costs import StepCosts
from specdec_plugins.decoding.controllers.registry import Head
from specdec_plugins.decoding.drafts import ChainDraft, Draft


class VerifyBudget(Controller):
    """Of all drafted slots of a batch, a step verifies the N that most probably survive.

    Slot i of a row survives with probability ``p_1 p_2 … p_i``, p being the head's. That falls
    along a row, so that the N best are the beginnings of rows: a row that is sure of its draft
    gets more, another one nothing. The verifier's own next token, which every row has in any case,
    is not counted; nor are the slots that ``bounds`` give a row that has fewer.
    """

    name = "acceptance-head"

    def __init__(self, bounds: Bounds, head: Head, budget: Callable[[Tensor], int]) -> None:
        """``budget``: N, of ``(rows, slots)`` probabilities of survival."""
        self.needs = Needs(bounds.most, confidences=True, whole_draft=True, unpadded=True)
        self._bounds, self._head, self._budget = bounds, head, budget

    def verify_lengths(self, draft: Draft) -> Tensor:
        assert isinstance(draft, ChainDraft)
        self.predicted = self._head(draft.states, draft.confidences)
        # What is no number does not survive.
        survival = self.predicted.cumprod(-1).nan_to_num(0)
        rows, slots = survival.shape
        best = survival.flatten().topk(min(self._budget(survival), rows * slots)).indices
        # Of slots of a row that survive alike, it does not matter which were taken.
        lengths = torch.zeros(rows, dtype=torch.long, device=best.device)
        return lengths.index_add_(0, best // slots, torch.ones_like(best)).clamp_(
            self._bounds.least
        )


class CostBudget(VerifyBudget):
    """N is what commits most tokens a second: see :func:`expected_rates`.

    What N slots cost a batch is measured by decoding with such budgets, so that it holds what
    rows of unequal lengths and the asking of the head cost, too.
    """

    def __init__(self, bounds: Bounds, head: Head) -> None:
        super().__init__(bounds, head, self._best)

    def tell(self, costs: StepCosts) -> None:
        """What steps cost, for as many rows as the next batch has, and more: drafting all slots,
        and verifying as many of them as ``slots`` a row would be."""
        slots = np.arange(costs.draft.shape[1])
        self._seconds: list[Floats] = []
        for rows, verify in enumerate(costs.verify):
            budgets = np.arange(rows * slots[-1] + 1) / max(1, rows)
            self._seconds.append(costs.draft[rows, -1] + np.interp(budgets, slots, verify))

    def trial(self, slots: int) -> VerifyBudget:
        """What spends as much a step as ``slots`` for each of its rows."""
        return VerifyBudget(self._bounds, self._head, lambda survival: slots * len(survival))

    def _best(self, survival: Tensor) -> int:
        ordered = survival.flatten().sort(descending=True).values.double().cpu().numpy()
        rows = len(survival)
        return int(expected_rates(ordered / rows, self._seconds[rows]).argmax())
