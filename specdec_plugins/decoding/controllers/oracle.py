"""The bound of all controllers that verify chains: one that has seen the end."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from specdec_plugins.decoding.controllers.base import Bounds, Constant, Draft, Outcome
from specdec_plugins.decoding.rehearsal import rehearsal


class Oracle(Constant):
    """``oracle``: verifies exactly what will be accepted. **Not a real decoder.**

    Every batch is decoded twice. The first pass drafts and verifies all slots, and is neither timed
    nor counted; the second is told what the first accepted at each position. It drafts nothing
    where nothing would be accepted, and else the whole block, since a drafter's tokens depend on
    how many slots there are. In low precision the second pass may reach a position that the first
    did not; there it verifies the whole block.
    """

    cuts = weighs_all = True

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(bounds)
        self._plan: Tensor | None = None

    def prepare(self, generator: Any, sample: dict[str, Any]) -> None:
        """The first pass."""
        with rehearsal(generator):
            hypotheses = generator.generate([], sample)
        capacity = max(len(hypothesis["tokens"]) for (hypothesis,) in hypotheses) + 1
        plan = [
            _plan(hypothesis["accepted"], capacity, self.length) for (hypothesis,) in hypotheses
        ]
        self._plan = torch.tensor(plan, device=sample["net_input"]["src_tokens"].device)

    def start(self, lengths: Tensor) -> Tensor:
        """What will be accepted from the beginning."""
        return self._look_up(lengths)

    def verify_lengths(self, draft: Draft, drafted: Tensor) -> Tensor:
        """What will be accepted."""
        return self._cut(self._accepted, drafted)

    def draft_lengths(self, outcome: Outcome) -> Tensor:
        """All slots, or none where none will be accepted."""
        return self._look_up(outcome.lengths)

    def _look_up(self, lengths: Tensor) -> Tensor:
        assert self._plan is not None
        places = lengths.clamp(max=self._plan.size(1) - 1)
        self._accepted = self._plan.gather(1, places[:, None])[:, 0]
        return self._bounded(torch.where(self._accepted > 0, self.length, 0))

    def keep(self, rows: Tensor) -> None:
        """Forget the other rows."""
        assert self._plan is not None
        self._plan = self._plan[rows]
        self._accepted = self._accepted[rows]


def _plan(accepted: list[int], capacity: int, unknown: int) -> list[int]:
    """What the first pass accepted, by the position where its steps began."""
    plan = [unknown] * capacity
    starts = accumulate((count + 1 for count in accepted), initial=0)
    for start, count in zip(starts, accepted):
        plan[start] = count
    return plan
