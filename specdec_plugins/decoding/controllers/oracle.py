"""``oracle``: the bound of all controllers that verify chains, one that has seen the end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from specdec_plugins.decoding.controllers.base import Bounds, Controller, Needs
from specdec_plugins.decoding.controllers.registry import Policy, Style, register_policy
from specdec_plugins.decoding.drafts import Draft
from specdec_plugins.decoding.step_result import StepResult


class Oracle(Controller):
    """Verifies exactly what will be accepted. **Not a real decoder.**

    It is told what decoding whole blocks accepted (:meth:`tell`). It drafts nothing where nothing
    would be accepted, and else the whole block, since a drafter's tokens depend on how many slots
    there are. In low precision it may reach a position that was not told; there it verifies the
    whole block.
    """

    name = "oracle"

    def __init__(self, bounds: Bounds) -> None:
        self.needs = Needs(bounds.most, whole_draft=True)
        self._bounds = bounds
        self._plans: list[dict[int, int]] = []
        self._accepted: list[int] = []

    def tell(self, accepted: Sequence[Sequence[int]]) -> None:
        """Of every sentence of the next batch, the drafted tokens that each step of whole blocks
        committed."""
        self._plans = [
            dict(zip(accumulate((count + 1 for count in steps), initial=0), steps))
            for steps in accepted
        ]

    def start(self, rows: int) -> list[int]:
        return self._lengths(range(rows), [0] * rows)

    def verify_lengths(self, draft: Draft) -> Tensor:
        """What will be accepted."""
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


register_policy(
    Policy(
        "oracle",
        "decodes twice, to show the bound of chains: not a real decoder",
        build=lambda options, parts: Oracle(parts.bounds),
        prepares=lambda options: "lookahead",
        styles={"oracle": Style("black", "*", 15)},
        real=False,
        rank=70,
    )
)
