"""``heuristic``: longer drafts after success, shorter ones after a rejection."""

from __future__ import annotations

from specdec_plugins.decoding.controllers.base import Bounds, Controller, Needs
from specdec_plugins.decoding.controllers.registry import Policy, Style, register_policy
from specdec_plugins.decoding.step_result import StepResult


class Heuristic(Controller):
    """Two slots more after a step that accepted its whole draft, else one less; at least one.

    The rule is that of Transformers' assisted generation.
    """

    name = "heuristic"

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = Bounds(max(1, bounds.least), bounds.most)
        self.needs = Needs(bounds.most)

    def start(self, rows: int) -> list[int]:
        """The most: a new sentence is an unknown one."""
        return [self._bounds.most] * rows

    def observe(self, result: StepResult) -> list[int]:
        """Two more or one less."""
        return [
            self._bounds.clamp(drafted + (2 if accepted == drafted else -1))
            for drafted, accepted in zip(result.drafted, result.accepted)
        ]


register_policy(
    Policy(
        "heuristic",
        "2 more when all was accepted, else 1 less",
        build=lambda options, parts: Heuristic(parts.bounds),
        styles={"heuristic": Style("#9467bd", "D", 8)},
        rank=20,
    )
)
