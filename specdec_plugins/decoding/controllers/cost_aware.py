"""``cost-aware``: the lengths that commit most tokens a second on this machine."""

from __future__ import annotations

import math
from argparse import SUPPRESS
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from specdec_plugins.decoding.arrays import Floats
from specdec_plugins.decoding.controllers.averages import NodeAverages
from specdec_plugins.decoding.controllers.base import Bounds, Needs
from specdec_plugins.decoding.controllers.costs import StepCosts
from specdec_plugins.decoding.controllers.policy import (
    Parts,
    PricedPolicy,
    TreePolicy,
    register_policy,
)
from specdec_plugins.decoding.controllers.priced import PricedController
from specdec_plugins.decoding.cost_profile import CostProfile
from specdec_plugins.decoding.options import option
from specdec_plugins.decoding.step_result import StepResult


class CostAware(PricedController):
    """Trees as large as commits most tokens a second, by a table of what steps cost and running
    averages of what is accepted.

    A row whose node j is accepted with probability ``S_j`` commits ``1 + S_1 + … + S_m`` tokens on
    average of m verified nodes, the bonus token included; m is the number for which this over the
    seconds of such a step is highest, over steps with a new draft and those that verify what an
    earlier one left; 0 is plain AR. (For chains with ``S_j = a**j`` and seconds that grow linearly
    this over that of m = 0 is the walltime improvement of Leviathan et al., *Fast Inference from
    Transformers via Speculative Decoding*, ICML 2023, theorem 3.8.) A batch that begins without
    drafts stays so: to start late a drafter must read the whole prefix.

    What is left of a tree is verified without drafting anew where that commits more tokens a
    second, by what the drafter promises and which part of such promises was kept. How often that
    is, and so how much a step commits and costs, depends on the length: for one that was tried
    lately, experience counts for more than the sum over its nodes.

    What is not drafted teaches nothing, so some time at the beginning, and a small share of it
    later, goes into batches of the largest trees: often where they are nearly the best, else
    seldom.
    """

    name = "cost-aware"
    reuse_together = True
    PERIOD = 8
    """Steps from one choice to the next: averages move slowly."""
    EXPLORATION = 0.005
    """Share of the time that may go into looking whether more should be drafted."""
    CREDIT = 0.25
    """At the beginning, this part of a batch's time may go into it: so batches for which the
    largest trees are far from the best do not begin with them."""
    KEPT = (0.7, 200.0)
    """Before anything is known: of what was promised of reused drafts this part is accepted, as if
    it had been promised so many tokens."""
    STEPS = 20.0
    """Before a length is tried, every step has a new draft, of which its nodes' averages tell how
    much is accepted, as if seen so many times."""
    FADING = 0.98
    """What of its experience with reused drafts, and with each length, remains after a period:
    after bad luck they are tried again."""

    def __init__(self, bounds: Bounds, depth: int, profile: CostProfile | None = None) -> None:
        """``bounds``: of a tree's nodes; ``depth``: how many tokens deep it is at most."""
        super().__init__(profile)
        self.needs = Needs(bounds.most, depth)
        self._bounds = bounds
        self._averages = NodeAverages(bounds.most)
        # Of reused drafts: tokens accepted, and tokens promised.
        self._kept, self._promised = self.KEPT[0] * self.KEPT[1], self.KEPT[1]
        # By lengths: steps that had it, how many of them had a new draft, and what was accepted.
        self._tried, self._renewed, self._accepted = np.zeros((3, bounds.most + 1))
        self._steps = 0
        self._saved = math.nan
        self._sentence = 20.0  # tokens, of the sentences so far on average

    def learn_costs(self, costs: StepCosts) -> None:
        self._costs = costs
        best = self._choose()
        if math.isnan(self._saved):
            self._saved = self.CREDIT * self._sentence / float(best[-1])

    def _choose(self) -> Floats:
        """Find the best length for every number of rows, and what follows from it; returns the
        tokens a second that it commits."""
        rates, seconds = self._rates()
        least = self._bounds.least
        choices = rates[:, least:].argmax(1) + least
        rows = np.arange(len(rates))
        best = rates[rows, choices]
        # As lists: a step asks for single numbers.
        self._choices = choices.tolist()
        self._chosen_seconds = seconds[rows, choices].tolist()
        # What the largest trees cost above the best, a token.
        self._extra = (1 / rates[:, -1] - 1 / best).tolist()
        # A reused draft is only verified, and commits one token of the verifier's besides: it must
        # commit what steps commit on average in that time.
        worth = (best[:, None] * self._costs.verify - 1) * (self._promised / self._kept)
        self._worth = worth.tolist()
        return best

    def _rates(self) -> tuple[Floats, Floats]:
        """``(rows, lengths)`` tokens a second, and the seconds of a step, with what is known of
        each length."""
        sums = np.concatenate([[0.0], self._averages.survival().cumsum()])
        seen = self.STEPS + self._tried
        renewed = (self.STEPS + self._renewed) / seen
        accepted = (self.STEPS * sums + self._accepted) / seen
        seconds: Floats = renewed * self._costs.draft + self._costs.verify
        return (1 + accepted) / seconds, seconds

    def start(self, rows: int) -> list[int]:
        """The best length; or the most, where enough time has been saved to look."""
        extra = self._sentence * self._extra[rows]
        explores = 0 < extra <= self._saved
        if explores:
            self._saved -= extra
        self._exploring = explores
        self._drafts = explores or self._choices[rows] > 0
        return self._lengths(rows, rows)

    def _lengths(self, rows: int, count: int) -> list[int]:
        """Draft lengths for ``count`` rows, of which the next step has ``rows``."""
        self._saved += self.EXPLORATION * self._chosen_seconds[rows]
        length = self._bounds.most if self._exploring else self._choices[rows]
        self.reuse_above = self._worth[rows][length]
        return [length if self._drafts else 0] * count

    def observe(self, result: StepResult) -> list[int]:
        """Answers as in the step before, or with what a new look at the averages says."""
        if self._drafts:
            self._learn(result)
        done = [length for length, end in zip(result.lengths, result.finished) if end]
        for length in done:
            self._sentence += (length - self._sentence) / 64
        return self._lengths(max(1, len(result.rows) - len(done)), len(result.rows))

    def _learn(self, result: StepResult) -> None:
        self._averages.note(result)
        for drafted, called, accepted, ended, expected in zip(
            result.drafted, result.called, result.accepted, result.ended, result.expected
        ):
            if not drafted:
                continue
            if not called:
                self._kept += accepted - ended
                self._promised += expected
            self._tried[drafted] += 1
            self._renewed[drafted] += called
            self._accepted[drafted] += accepted - ended
        self._steps += 1
        if self._steps % self.PERIOD == 0:
            self._averages.learn()
            for counts in (self._tried, self._renewed, self._accepted):
                counts *= self.FADING
            prior = self.KEPT[1]
            self._promised = prior + self.FADING * (self._promised - prior)
            prior *= self.KEPT[0]
            self._kept = prior + self.FADING * (self._kept - prior)
            self._choose()


@register_policy
@dataclass(frozen=True, kw_only=True)
class CostAwarePolicy(PricedPolicy, TreePolicy):
    """See :class:`CostAware`."""

    name: ClassVar[str] = "cost-aware"
    help: ClassVar[str] = (
        "most tokens a second on this machine, so that relaxed output depends on timings and on "
        "the batch"
    )
    rank: ClassVar[int] = 60
    unswept: ClassVar[tuple[str, ...]] = ("tree_nodes",)

    survival: str | None = option(
        None,
        SUPPRESS,
        gone="cost-aware drafts trees, which committed more than its chains; for chains use "
        "--controller acceptance-head",
    )

    @property
    def looks_around(self) -> bool:
        return True

    @property
    def measures(self) -> bool:
        return True

    def build(self, parts: Parts) -> CostAware:
        return CostAware(parts.bounds, parts.depth, CostProfile(self.cost_profile))
