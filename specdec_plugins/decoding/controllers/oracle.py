"""The bound of all controllers that verify chains: a controller that has seen the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from specdec_plugins.decoding.controllers.base import Controller, register
from specdec_plugins.decoding.controllers.simple import Constant
from specdec_plugins.decoding.drafts import Draft
from specdec_plugins.decoding.step_result import Hypothesis, StepResult


@register
@dataclass(kw_only=True)
class Oracle(Controller):
    """Verifies exactly the slots that will be accepted. **Not a real decoder.**

    It decodes each batch with whole blocks first, neither timed nor counted. It drafts nothing
    where nothing would be accepted, else the whole block, since a drafter's tokens depend on the
    number of slots. At a position that only low precision reaches it verifies the whole block.
    """

    name = "oracle"
    help = "decodes twice, to show the bound of chains: not a real decoder"
    reads_whole_draft = True
    real = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._plans: list[dict[int, int]] = []
        self._forced: list[int] = []
        self._accepted: list[int] = []

    def prepare(self, decode: Callable[[Controller], list[list[Hypothesis]]]) -> None:
        hypotheses = [row[0] for row in decode(Constant(max_draft=self.max_length))]
        self._forced = [hypothesis["forced"] for hypothesis in hypotheses]
        # The drafted tokens that a step of whole blocks commits, by the position where it begins.
        self._plans = [
            dict(zip(accumulate((count + 1 for count in steps), initial=begin), steps))
            for steps, begin in zip((h["accepted"] for h in hypotheses), self._forced)
        ]

    def start(self, rows: int) -> list[int]:
        return self._lengths(range(rows), self._forced)

    def verify_lengths(self, draft: Draft) -> Tensor:
        lengths = [self.clamp(count) for count in self._accepted]
        return torch.tensor(lengths, device=draft.tokens.device)

    def observe(self, result: StepResult) -> list[int]:
        lengths = self._lengths(result.rows, result.lengths)
        self._accepted = [self._accepted[i] for i in result.kept]
        return lengths

    def _lengths(self, rows: Sequence[int], positions: list[int]) -> list[int]:
        self._accepted = [
            self._plans[row].get(position, self.max_length)
            for row, position in zip(rows, positions)
        ]
        return [self.clamp(self.max_length if count else 0) for count in self._accepted]
