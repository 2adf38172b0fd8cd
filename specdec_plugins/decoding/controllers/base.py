"""What a controller is asked and told. No fairseq in this package."""

from __future__ import annotations

import math
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from specdec_plugins.decoding.drafts import Draft
from specdec_plugins.decoding.hypothesis import Hypothesis
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.decoding.step_result import StepResult
from specdec_plugins.host.fairseq_types import Sample


@dataclass(frozen=True)
class Needs:
    """What drafts a controller wants."""

    most: int
    """The most slots of a draft; of trees, nodes. 0: it never drafts."""
    depth: int = 0
    """The depth of trees in tokens; 0: drafts are chains."""
    confidences: bool = False
    """Whether drafts are to come with the drafter's probability of each token."""
    whole_draft: bool = False
    """Whether verify lengths depend on more of the draft than the tokens that are then verified and
    the one after them."""


@dataclass(frozen=True)
class Bounds:
    """The least and the most slots of a draft and of what is verified of it; of trees, nodes."""

    least: int
    most: int

    def clamp(self, length: int) -> int:
        """The nearest length within the bounds."""
        return min(max(length, self.least), self.most)


class Decoder(Protocol):
    """What a controller may try something on before a batch: a generator."""

    def decode(
        self, sample: Sample, controller: Controller, statistics: DecodingStatistics
    ) -> list[list[Hypothesis]]:
        """Translate a batch under a controller; what it takes is counted in ``statistics``."""
        ...


class Controller:
    """Decides how much to draft and how much of the draft to verify.

    It is told what steps did, as data, and answers on the host; only verify lengths are tensors,
    since they depend on the draft. If a policy knows no better, every step drafts the most and
    verifies all of it.
    """

    name: str
    """Its policy's."""
    needs: Needs
    steady: bool = False
    """Whether every step of a batch drafts as much as the first, and verifies all of it: such a
    step can be recorded."""
    reuse_above: float = math.inf
    """The number of tokens from which a row's rest of a tree, expected to have so many accepted, is
    verified once more instead of a new draft."""
    predicted: Tensor | None = None
    """``(rows, slots)`` of the last draft: how likely each of its tokens is to be accepted if those
    before it are, as an acceptance head said; None where none was asked."""

    def prepare(self, decoder: Decoder, sample: Sample) -> None:
        """A batch is about to be decoded and timed: what has to be tried on it first, is."""

    def rehearsals(self, lengths: Iterable[int]) -> list[Controller]:
        """Controllers under which made-up sentences are decoded before the first real one, so that
        an engine meets the sizes that this one asks for.

        Args:
            lengths: of drafts, one for each size that the engine pads to.
        """
        return [deepcopy(self)]

    def start(self, rows: int) -> list[int]:
        """Draft lengths of the first step of a batch of so many rows, at most ``needs.most``."""
        return [self.needs.most] * rows

    def observe(self, result: StepResult) -> list[int]:
        """Draft lengths of the next step, for all rows of this one: a batch is drafted as wide as
        its longest row. Those of finished rows are not used; the others change places, as
        ``result.kept`` says."""
        return [self.needs.most] * len(result.rows)

    def verify_lengths(self, draft: Draft) -> Tensor | None:
        """``(rows,)`` how many drafted tokens to verify; None: all."""
        return None


class NoDrafts(Controller):
    """``none``: nothing is drafted; the null object."""

    name = "none"
    needs = Needs(0)
    steady = True
