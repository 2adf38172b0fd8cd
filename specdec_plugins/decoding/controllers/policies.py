"""The controllers that follow a rule of thumb, or a head."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_plugins.decoding.controllers.base import Bounds, Constant, Draft, Head, Outcome


class Tree(Constant):
    """``tree``: verify the most probable continuations, so many tokens in all.

    Broad where the drafter is unsure, deep where it is sure: which they are, it says itself, with
    every draft (see :meth:`~specdec_plugins.decoding.tree_source.TreeSource.grow`). The slots after
    a rejected token are verified once more, after the verifier's own, as long as they promise
    enough: that costs no pass of the drafter.
    """

    def __init__(self, bounds: Bounds, depth: int, redraft_below: float) -> None:
        """
        Args:
            bounds: of the nodes, the most of which it always takes.
            depth: how many tokens deep trees are at most.
            redraft_below: how many accepted tokens what is left of a draft must promise, a row.
        """
        super().__init__(bounds)
        self.depth = depth
        self._redraft_below = redraft_below

    def redrafts(self, promised: list[float]) -> list[bool]:
        """Unless it is enough, and something is left at all: for each row by itself, so that
        relaxed output does not depend on what else is in the batch."""
        return [tokens <= 0 or tokens < self._redraft_below for tokens in promised]


class Heuristic(Constant):
    """``heuristic``: two slots more after a step that accepted its whole draft, else one less.

    At least one. The rule is that of Transformers' assisted generation.
    """

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(Bounds(max(1, bounds.least), bounds.most))

    def start(self, lengths: Tensor) -> Tensor:
        """The most: a new sentence is an unknown one."""
        self._lengths = torch.full_like(lengths, self.length)
        return self._lengths

    def draft_lengths(self, outcome: Outcome) -> Tensor:
        """Two more or one less."""
        change = torch.where(outcome.accepted == outcome.drafted, 2, -1)
        self._lengths = self._bounded(outcome.drafted + change)
        return self._lengths


class Confidence(Constant):
    """``confidence``: cut before the first slot whose probability is below a threshold.

    The probability is the drafter's own of the token it drafted; for a drafter with a previous
    token head it is one among the slot's candidates. With ``refit`` the threshold follows the
    slots that were verified last: :func:`best_threshold`, asked every so many steps.
    """

    cuts = True
    reads_probabilities = True
    RECENT = 256
    """Slots that the threshold is fitted to."""
    PERIOD = 8
    """Steps from one fit to the next."""

    def __init__(self, bounds: Bounds, threshold: float, refit: bool = False) -> None:
        super().__init__(bounds)
        self.threshold: float | Tensor = threshold
        self._refit = refit
        self._steps = 0
        self._probabilities: Tensor | None = None
        self._recent: Tensor | None = None

    def start(self, lengths: Tensor) -> Tensor | None:
        """As many as ever; where it refits, it says so as a tensor, to be told what happened."""
        return torch.full_like(lengths, self.length) if self._refit else None

    def verify_lengths(self, draft: Draft, drafted: Tensor) -> Tensor:
        """The slots before the first unlikely one."""
        assert draft.probabilities is not None
        self._probabilities = draft.probabilities
        likely = draft.probabilities >= self.threshold
        return self._cut(likely.long().cumprod(-1).sum(-1), drafted)

    def draft_lengths(self, outcome: Outcome) -> Tensor:
        """As many as ever, once what happened is noted."""
        if self._probabilities is not None:
            self._note(self._probabilities, outcome)
        return torch.full_like(outcome.drafted, self.length)

    def _note(self, probabilities: Tensor, outcome: Outcome) -> None:
        """Keep the newest slots that were judged, as pairs of probability and 1 or 0; NaN: none."""
        slots = torch.arange(probabilities.size(1), device=probabilities.device)
        accepted = slots < outcome.accepted[:, None]
        judged = slots < (outcome.accepted + outcome.rejected.long())[:, None]
        new = torch.stack([probabilities.masked_fill(~judged, torch.nan), accepted.float()], -1)
        new = new.flatten(0, 1)
        recent = new if self._recent is None else torch.cat([self._recent, new])
        # The judged ones last, in their order, so that others never push them out.
        order = recent[:, 0].isnan().logical_not().long().argsort(stable=True)
        self._recent = recent[order[-self.RECENT :]]
        self._steps += 1
        if self._steps % self.PERIOD == 0:
            self.threshold = best_threshold(self._recent[:, 0], self._recent[:, 1], self.threshold)


def best_threshold(
    probabilities: Tensor, accepted: Tensor, default: float | Tensor, weight: float = 3.0
) -> Tensor:
    """The probability from which on to verify slots: least false accepts + 3 false rejects.

    Both are rates: of the rejected slots those at or above the threshold, of the accepted slots
    those below it. That is the point of the ROC curve which Transformers' assisted generation takes
    for its ``assistant_confidence_threshold``.

    Args:
        probabilities: ``(slots,)``; NaN where there is no slot.
        accepted: ``(slots,)`` 1 where the slot was accepted, 0 where it was not.
        default: the answer where all slots have the same fate.
        weight: of the false rejects.

    Returns:
        a scalar, one of the probabilities or ``default``.
    """
    known = ~probabilities.isnan()
    ordered, order = probabilities.nan_to_num(nan=-1.0).sort(descending=True)
    good = (accepted * known)[order].cumsum(0)
    bad = ((1 - accepted) * known)[order].cumsum(0)
    cost = bad / bad[-1] + weight * (1 - good / good[-1])
    # Of equal probabilities, the last one's sums hold all of them.
    inner = torch.cat([ordered[1:] == ordered[:-1], ordered.new_zeros(1, dtype=torch.bool)])
    best = ordered[cost.masked_fill(inner | (ordered < 0), torch.inf).argmin()]
    return torch.where((bad[-1] > 0) & (good[-1] > 0), best, default)


class AcceptanceHead(Constant):
    """``acceptance-head``: cut where a rejection has become too likely.

    Of the head's probabilities p_i, slots are verified as long as ``1 - p_1 p_2 … p_i``, the
    probability that one of them is rejected, is at most the threshold (SpecDec++, Huang et al.,
    2024, §3).
    """

    cuts = True
    reads_probabilities = True

    def __init__(self, bounds: Bounds, head: Head, threshold: float) -> None:
        super().__init__(bounds)
        self._head = head
        self._threshold = threshold

    def verify_lengths(self, draft: Draft, drafted: Tensor) -> Tensor:
        """The slots before the first risky one."""
        assert draft.states is not None
        assert draft.probabilities is not None
        least = 1 - self._threshold
        return self._cut(self._head.survivors(draft.states, draft.probabilities, least), drafted)
