"""``acceptance-head``: cut where a rejection has become too likely."""

from __future__ import annotations

import logging
from argparse import SUPPRESS
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.decoding.arrays import Floats
from specdec_plugins.decoding.controllers.base import Bounds, Controller, Decoder, Needs
from specdec_plugins.decoding.controllers.policy import (
    DraftingPolicy,
    Head,
    Parts,
    register_policy,
)
from specdec_plugins.decoding.drafts import ChainDraft, Draft
from specdec_plugins.decoding.options import option
from specdec_plugins.decoding.statistics import DecodingStatistics, Stopwatch
from specdec_plugins.decoding.step_result import StepResult
from specdec_plugins.host.fairseq_types import Sample

logger = logging.getLogger(__name__)


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
        lengths = (self._survival(draft) >= self._least).sum(-1)
        return lengths.clamp_(self._bounds.least) if self._bounds.least else lengths

    def _survival(self, draft: Draft) -> Tensor:
        """``(rows, slots)`` how probably each slot and all before it are accepted."""
        assert isinstance(draft, ChainDraft)
        self.predicted = self._head(draft.states, draft.confidences)
        return self.predicted.cumprod(-1)


class CostStopping(AcceptanceHead):
    """Slots are verified as long as that pays, by what steps cost on this machine: it measures that
    before its first batch, and before each that is larger.

    SpecDec++ (§3, theorem 3.1) stops drafting where the probability that a drafted token is
    rejected is above ``1 - c1 / (c1 + c2 + Δ)``, c1 being what one more drafted token costs. Here
    one pass drafts all k slots, so that to have one more costs nothing; what costs is to verify it.

    A step that drafts k slots and verifies m of them takes ``D + V(m)`` seconds, and commits
    ``1 + S_1 + … + S_m`` tokens on average, S_j being the probability that slot j and all before it
    are accepted. Tokens a second, λ, are in the long run the quotient of the sums of both; of all
    rules that one makes it largest which, with the λ that it reaches, at every step makes
    ``S_1 + … + S_m - λ V(m)`` largest (Dinkelbach, *On Nonlinear Fractional Programming*, 1967). If
    each slot adds v seconds to V, slot j is thus worth verifying while ``S_j / λ >= v``: the
    probability that it survives, times the seconds that a committed token costs, is not below the
    seconds that it takes to verify. S_j falls with j, so that the first slot which is not worth it
    is where to stop: where the probability of a rejection, ``1 - S_j``, is above ``1 - v λ``. That
    has the theorem's form, 1 less the price of a token by what it is worth.

    v is ``(V(k) - V(0)) / k``, measured by decoding the batch at hand with drafts of which nothing
    is verified, and with drafts of which all is. λ is that of the steps made lately: the tokens
    that they committed, by what such steps take. Each new λ is that of the rule which the one
    before made, which is Dinkelbach's own way to the largest. The rows of a batch share a step,
    which is as wide as the longest of them: they are cut alike, by their mean S_j.
    """

    PERIOD = 8
    """Steps from one choice to the next: averages move slowly."""
    PRIOR = 20.0
    """The weight of the first guess: that so many rows had nothing accepted, and nothing
    verified."""
    WINDOW = 1000.0
    """Rows after which an old one has lost most of its weight."""
    ROUNDS = 4
    """How often a batch is decoded to measure its steps; the first time does not count."""

    def __init__(self, bounds: Bounds, head: Head) -> None:
        super().__init__(bounds, head, 1.0)
        self._known = 0
        # Rows of steps, tokens committed and slots verified: of all lately, and of the newest.
        self._seen = self.PRIOR * np.array([1.0, 1.0, 0.0])
        self._new, self._steps = np.zeros(3), 0

    def prepare(self, decoder: Decoder, sample: Sample) -> None:
        """Measure what a step takes, of one row and of all; between them it is interpolated."""
        tokens = sample["net_input"]["src_tokens"]
        rows, device = len(tokens), tokens.device
        if rows <= self._known:
            return
        logger.info("measuring what steps cost, for batches of up to %d", rows)
        sizes = sorted({1, rows})
        # What is drawn in passing is not to change what is drawn later.
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            found = [self._step_seconds(decoder, sample, size) for size in sizes]
        self.learn_costs(*(np.interp(range(rows + 1), sizes, part) for part in zip(*found)))

    def _step_seconds(self, decoder: Decoder, sample: Sample, rows: int) -> list[float]:
        """Seconds of a step of the first ``rows`` that verifies nothing, and of one that verifies
        all; the encoder's, which no length changes, are left out."""
        inputs = {name: tensor[:rows] for name, tensor in sample["net_input"].items()}
        lengths = 0, self._bounds.most
        trials: dict[Controller, list[float]] = {self._verifying(n): [] for n in lengths}
        for _ in range(self.ROUNDS):
            for trial, seconds in trials.items():
                # By one clock, since the encoder's seconds are taken from the whole.
                statistics = DecodingStatistics(stopwatch=Stopwatch(waits=True))
                decoder.decode({"net_input": inputs}, trial, statistics)
                encoding = statistics.stopwatch.seconds()["encode"]
                seconds.append((statistics.total_seconds - encoding) * rows / statistics.steps)
        return [median(seconds[1:]) for seconds in trials.values()]

    def _verifying(self, length: int) -> AcceptanceHead:
        """What verifies so many slots of every draft, and asks the head as this one does."""
        return AcceptanceHead(Bounds(length, self._bounds.most), self._head, -1.0)

    def rehearsals(self, lengths: Iterable[int]) -> list[Controller]:
        """Drafts of which as many slots are verified: which it will choose, it does not know
        yet."""
        return [self._verifying(length) for length in lengths]

    def learn_costs(self, nothing: Floats, everything: Floats) -> None:
        """Know the seconds of a step that verifies nothing of its draft, and of one that verifies
        everything: ``(rows + 1,)`` by the number of rows."""
        self._known = len(nothing) - 1
        self._fixed = nothing
        # Where more takes less, something disturbed it.
        self._slot = np.maximum(everything - nothing, 0) / self._bounds.most
        self._choose()

    def _choose(self) -> None:
        """Choose, for every number of rows, how probably a slot must survive to be verified."""
        _, committed, verified = self._seen / self._seen[0]
        self._worth = torch.from_numpy(
            self._slot * committed / (self._fixed + self._slot * verified)
        )

    def verify_lengths(self, draft: Draft) -> Tensor:
        """The slots before the first that is not worth it; as many of each row."""
        rows = len(draft.drafted)
        length = (self._survival(draft).mean(0) >= self._worth[rows]).sum(-1, keepdim=True)
        return length.clamp(self._bounds.least).expand(rows)

    def observe(self, result: StepResult) -> list[int]:
        self._new += len(result.rows), sum(result.committed), sum(result.verified)
        self._steps += 1
        if self._steps % self.PERIOD == 0:
            kept = self.WINDOW / (self.WINDOW + self._new[0])
            self._seen, self._new = kept * self._seen + self._new, np.zeros(3)
            self._choose()
        return super().observe(result)


@register_policy
@dataclass(frozen=True, kw_only=True)
class AcceptanceHeadPolicy(DraftingPolicy):
    """See :class:`AcceptanceHead` and :class:`CostStopping`."""

    name: ClassVar[str] = "acceptance-head"
    help: ClassVar[str] = "cut where a rejection becomes likely"
    rank: ClassVar[int] = 40
    asks_head: ClassVar[bool] = True

    stop_threshold: float = option(
        0.7,
        "acceptance-head: cut where a rejection is more probable than this",
        least=0,
        most=1,
        sweep=(0.1, 0.3, 0.5, 0.7, 0.9),
        axis="threshold",
    )
    auto_stop_threshold: bool = option(
        False,
        "acceptance-head: the threshold that follows from what steps cost on this machine, in "
        "place of --stop-threshold: relaxed output then depends on timings and on the batch",
    )
    cost_profile: str | None = option(
        None,
        SUPPRESS,
        gone="--auto-stop-threshold measures what steps cost anew in every run, which takes a "
        "moment",
    )
    survival: str | None = option(
        None,
        SUPPRESS,
        gone="cost-aware, which had it, was taken away; for chains use --controller "
        "acceptance-head",
    )
    verify_budget: str | None = option(
        None,
        SUPPRESS,
        gone="it was slower than no drafts in every batch measured; use --stop-threshold",
    )
    acceptance_head: str | None = option(
        None,
        "acceptance-head: file of the head (inference.py finds the acceptance_head.pt, or for "
        "relaxed acceptance or sampling acceptance_head.relaxed.pt or .sampling.pt, that lies "
        "beside the drafter)",
    )

    @property
    def looks_around(self) -> bool:
        return self.auto_stop_threshold

    @property
    def measures(self) -> bool:
        return self.auto_stop_threshold

    @property
    def idle(self) -> frozenset[str]:
        return frozenset({"stop_threshold"} if self.auto_stop_threshold else ())

    def build(self, parts: Parts) -> Controller:
        assert parts.head is not None
        if self.auto_stop_threshold:
            return CostStopping(parts.bounds, parts.head)
        return AcceptanceHead(parts.bounds, parts.head, self.stop_threshold)
