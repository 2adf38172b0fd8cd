"""``oracle``: the bound of all controllers that verify chains, one that has seen the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

import torch
from torch import Tensor

from specdec_plugins.decoding.controllers.base import Bounds, Controller, Decoder, Needs
from specdec_plugins.decoding.controllers.constant import Constant
from specdec_plugins.decoding.controllers.policy import (
    DraftingPolicy,
    Parts,
    register_policy,
)
from specdec_plugins.decoding.drafts import Draft
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.decoding.step_result import StepResult
from specdec_plugins.host.fairseq_types import Sample


class Oracle(Controller):
    """Verifies exactly what will be accepted. **Not a real decoder.**

    It decodes each batch with whole blocks first, neither timed nor counted. It drafts nothing
    where nothing would be accepted, and else the whole block, since a drafter's tokens depend on
    how many slots there are. In low precision it may reach a position that was not reached before;
    there it verifies the whole block.
    """

    name = "oracle"

    def __init__(self, bounds: Bounds) -> None:
        self.needs = Needs(bounds.most, whole_draft=True)
        self._bounds = bounds
        self._plans: list[dict[int, int]] = []
        self._begins: list[int] = []
        self._accepted: list[int] = []

    def prepare(self, decoder: Decoder, sample: Sample) -> None:
        """See what whole blocks come to."""
        found = decoder.decode(sample, Constant(self.needs.most), DecodingStatistics())
        self.foresee(
            [hypothesis["accepted"] for (hypothesis,) in found],
            [hypothesis["forced"] for (hypothesis,) in found],
        )

    def rehearsals(self, lengths: Iterable[int]) -> list[Controller]:
        """No controllers: the oracle decodes each batch twice anyway."""
        return []

    def foresee(self, accepted: Sequence[Sequence[int]], forced: list[int]) -> None:
        """Know of every sentence of the next batch the drafted tokens that each step of whole
        blocks committed, and how many tokens were forced before the first."""
        self._plans = [
            dict(zip(accumulate((count + 1 for count in steps), initial=begin), steps))
            for steps, begin in zip(accepted, forced, strict=True)
        ]
        self._begins = forced

    def start(self, rows: int) -> list[int]:
        return self._lengths(range(rows), self._begins)

    def verify_lengths(self, draft: Draft) -> Tensor:
        """Return what will be accepted."""
        lengths = [self._bounds.clamp(count) for count in self._accepted]
        return torch.tensor(lengths, device=draft.tokens.device)

    def observe(self, result: StepResult) -> list[int]:
        """All slots, or none where none will be accepted."""
        lengths = self._lengths(result.rows, result.lengths)
        self._accepted = [self._accepted[i] for i in result.kept]
        return lengths

    def _lengths(self, rows: Sequence[int], positions: list[int]) -> list[int]:
        most = self._bounds.most
        self._accepted = [self._plans[row].get(at, most) for row, at in zip(rows, positions)]
        return [self._bounds.clamp(most if count else 0) for count in self._accepted]


@register_policy
@dataclass(frozen=True, kw_only=True)
class OraclePolicy(DraftingPolicy):
    """See :class:`Oracle`."""

    name: ClassVar[str] = "oracle"
    help: ClassVar[str] = "decodes twice, to show the bound of chains: not a real decoder"
    rank: ClassVar[int] = 70
    real: ClassVar[bool] = False

    def build(self, parts: Parts) -> Oracle:
        return Oracle(parts.bounds)
