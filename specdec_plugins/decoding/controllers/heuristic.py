"""``heuristic``: longer drafts after success, shorter ones after a rejection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from specdec_plugins.decoding.controllers.base import Bounds, Controller, Needs
from specdec_plugins.decoding.controllers.policy import (
    DraftingPolicy,
    Parts,
    register_policy,
)
from specdec_plugins.decoding.options import option
from specdec_plugins.decoding.step_result import StepResult


class Heuristic(Controller):
    """Two slots more after a step that accepted its whole draft, else one less; at least one.

    The rule is that of Transformers' assisted generation. Each sentence begins with ``initial``
    slots, there ``num_assistant_tokens`` with the schedule ``heuristic_transient``; or, if it is to
    ``remember``, as its schedule ``heuristic``, with what the one before came to. Transformers
    takes one sentence at a time: of batches it is the mean of what their sentences came to.
    """

    name = "heuristic"

    def __init__(self, bounds: Bounds, initial: int | None = None, remember: bool = False) -> None:
        """``initial``: None is the most, since a new sentence is an unknown one.

        Raises:
            ValueError: ``initial`` is out of the bounds.
        """
        self._bounds = Bounds(max(1, bounds.least), bounds.most)
        if initial is not None and self._bounds.clamp(initial) != initial:
            raise ValueError(
                f"--initial-draft {initial}: must be between {self._bounds.least} and "
                f"{bounds.most}, the fewest and the most slots to draft"
            )
        self.needs = Needs(bounds.most)
        self._first = bounds.most if initial is None else initial
        self._remember = remember
        self._ends: list[int] = []

    def start(self, rows: int) -> list[int]:
        if self._ends:
            self._first = int(sum(self._ends) / len(self._ends) + 0.5)
            self._ends = []
        return [self._first] * rows

    def observe(self, result: StepResult) -> list[int]:
        """Two more or one less."""
        lengths = [
            self._bounds.clamp(drafted + (2 if accepted == drafted else -1))
            for drafted, accepted in zip(result.drafted, result.accepted)
        ]
        if self._remember:
            self._ends += [length for length, end in zip(lengths, result.finished) if end]
        return lengths


@register_policy
@dataclass(frozen=True, kw_only=True)
class HeuristicPolicy(DraftingPolicy):
    """See :class:`Heuristic`."""

    name: ClassVar[str] = "heuristic"
    help: ClassVar[str] = "2 more when all was accepted, else 1 less"
    rank: ClassVar[int] = 20

    initial_draft: int | None = option(
        None, "heuristic: slots of a sentence's first draft; by default the most", least=1
    )
    remember_draft: bool = option(
        False,
        "heuristic: begin a sentence as the one before ended, and only the first by "
        "--initial-draft: relaxed output then depends on them",
    )

    @property
    def looks_around(self) -> bool:
        return self.remember_draft

    def build(self, parts: Parts) -> Heuristic:
        return Heuristic(parts.bounds, self.initial_draft, self.remember_draft)
