"""Which controller, with which settings: checked, and built."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from specdec_plugins.decoding.controllers.base import Bounds, Constant, Controller, Head
from specdec_plugins.decoding.controllers.cost_aware import CostAware
from specdec_plugins.decoding.controllers.oracle import Oracle
from specdec_plugins.decoding.controllers.policies import (
    AcceptanceHead,
    Confidence,
    Heuristic,
    Tree,
)
from specdec_plugins.decoding.controllers.survival import CalibratedConfidence
from specdec_plugins.decoding.cost_profile import CostProfile

NAMES = (
    "constant",
    "heuristic",
    "confidence",
    "acceptance-head",
    "tree",
    "cost-aware",
    "oracle",
    "none",
)


MOST_NODES = 1024
"""Tokens of a tree: what is worth verifying is far fewer, and a pass over n takes n * n numbers."""
SURVIVAL = ("tree", "averages", "confidence", "head")
USED_BY = {
    "confidence": ("confidence_threshold", "refit_threshold"),
    "acceptance-head": ("stop_threshold", "acceptance_head"),
    "tree": ("tree_nodes", "redraft_below"),
    "cost-aware": ("tree_nodes", "survival", "acceptance_head", "cost_profile"),
}
"""Settings of some controllers only."""


@dataclass(frozen=True)
class ControllerOptions:
    """A controller's settings, under the names of the task's options."""

    controller: str = "constant"
    """One of ``NAMES``."""
    min_draft: int = 0
    """The fewest slots of a draft, and of what is verified of it; of a tree, the fewest nodes."""
    max_draft: int | None = None
    """The most slots, of a tree how deep it may be; None is the block size."""
    confidence_threshold: float = 0.4
    """``confidence``: verify the slots before the first whose probability is below."""
    refit_threshold: bool = False
    """``confidence``: let the threshold follow what was accepted."""
    stop_threshold: float = 0.7
    """``acceptance-head``: cut where the probability of a rejection is above."""
    tree_nodes: int = 16
    """How many tokens of a tree to verify; with ``cost-aware``, at most."""
    redraft_below: float = 1.5
    """``tree``: draft anew where what is left of the last draft promises fewer accepted tokens."""
    survival: str | None = None
    """``cost-aware``: what is drafted, and what tells how much of it will be accepted, one of
    ``SURVIVAL``: trees and running averages by node; or chains and running averages by slot, the
    drafter's confidence, or a head. None is the head if its file is given, else trees."""
    acceptance_head: str | None = None
    """The file of a head. What needs one, ``acceptance-head`` or the survival of ``head``, finds
    that beside the drafter where the drafter's file is known."""
    cost_profile: str | None = None
    """``cost-aware``: the file of the costs; None is one in the cache folder."""

    def __post_init__(self) -> None:
        """
        Raises:
            ValueError: a setting that cannot be, naming its flag.
        """
        if self.controller not in NAMES:
            raise ValueError(f"--controller {self.controller}: must be one of {', '.join(NAMES)}")
        for name in ("confidence_threshold", "stop_threshold"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ValueError(f"--{name.replace('_', '-')} {value}: must be between 0 and 1")
        if not 1 <= self.tree_nodes <= MOST_NODES:
            raise ValueError(f"--tree-nodes {self.tree_nodes}: must be between 1 and {MOST_NODES}")
        if not self.redraft_below >= 0:
            raise ValueError(f"--redraft-below {self.redraft_below}: must be 0 or more")
        if self.survival not in (None, *SURVIVAL):
            raise ValueError(f"--survival {self.survival}: must be one of {', '.join(SURVIVAL)}")
        if self.max_draft is not None and self.max_draft < 1:
            raise ValueError(
                f"--max-draft {self.max_draft}: must be at least 1; to draft nothing give "
                "--controller none"
            )
        if self.min_draft < 0:
            raise ValueError(f"--min-draft {self.min_draft}: must be 0 or more")
        flag, most = ("--max-draft", self.max_draft)
        if self.drafts_trees:
            flag, most = ("--tree-nodes", self.tree_nodes)
        if most is not None and self.min_draft > most:
            raise ValueError(f"--min-draft {self.min_draft}: is above {flag} {most}")
        if self.min_draft and not self.drafts:
            raise ValueError(f"--min-draft {self.min_draft}: --controller none drafts nothing")

    @property
    def drafts(self) -> bool:
        """Whether a drafter is needed at all."""
        return self.controller != "none"

    @property
    def drafts_trees(self) -> bool:
        """Whether drafts branch."""
        if self.controller == "cost-aware" and self.survival is None:
            return self.acceptance_head is None
        named = self.controller == "cost-aware" and self.survival == "tree"
        return named or self.controller == "tree"

    @property
    def looks_around(self) -> bool:
        """Whether it decides for a row by other rows, those before it or timings too: relaxed
        output then depends on them, also in float64."""
        refits = self.controller == "confidence" and self.refit_threshold
        return refits or self.controller == "cost-aware"

    @property
    def idle(self) -> set[str]:
        """The settings that this controller does not look at."""
        used = {"controller", *USED_BY.get(self.controller, ())}
        if self.drafts:
            used |= {"min_draft", "max_draft"}
        # Which of these cost-aware looks at depends on what it drafts.
        if not self.reads_head:
            used.discard("acceptance_head")
        if not self.drafts_trees:
            used.discard("tree_nodes")
        return {field.name for field in fields(self)} - used

    @property
    def reads_head(self) -> bool:
        """Whether the controller makes use of an acceptance head."""
        if self.controller == "cost-aware" and self.survival is None:
            return self.acceptance_head is not None
        return self.needs_head

    @property
    def needs_head(self) -> bool:
        """Whether the controller cannot do without one."""
        named = self.controller == "cost-aware" and self.survival == "head"
        return named or self.controller == "acceptance-head"

    @classmethod
    def from_config(cls, config: Any) -> ControllerOptions:
        """From a task's config or a command line, which have the same names."""
        given = {field.name: getattr(config, field.name) for field in fields(cls)}
        for name in ("controller", "survival"):
            given[name] = None if given[name] is None else str(given[name])
        return cls(**given)


def check_bounds(options: ControllerOptions, block_size: int) -> None:
    """
    Raises:
        ValueError: a bound is above the block size, naming its flag.
    """
    least = None if options.drafts_trees else options.min_draft
    for flag, value in (("--max-draft", options.max_draft), ("--min-draft", least)):
        if value is not None and value > block_size:
            raise ValueError(f"{flag} {value}: is above the block size, {block_size}")


def build_controller(
    options: ControllerOptions, block_size: int, head: Head | None = None
) -> Controller:
    """The controller for blocks of ``block_size``.

    Args:
        head: an acceptance head, for ``acceptance-head``, which needs it, and ``cost-aware``, which
            makes use of it.

    Raises:
        ValueError: bounds outside the block, or no head where one is needed.
    """
    check_bounds(options, block_size)
    most = block_size if options.max_draft is None else options.max_draft
    bounds = Bounds(options.min_draft, options.tree_nodes if options.drafts_trees else most)
    name = options.controller
    if options.needs_head and head is None:
        asked = "--survival head" if name == "cost-aware" else f"--controller {name}"
        raise ValueError(
            f"{asked}: there is no acceptance head beside the drafter; give its file with "
            "--acceptance-head"
        )
    if name == "heuristic":
        return Heuristic(bounds)
    if name == "confidence":
        return Confidence(bounds, options.confidence_threshold, options.refit_threshold)
    if name == "acceptance-head":
        assert head is not None
        return AcceptanceHead(bounds, head, options.stop_threshold)
    if name == "tree":
        return Tree(bounds, most, options.redraft_below)
    if name == "cost-aware":
        profile = CostProfile(options.cost_profile)
        if options.drafts_trees:
            return CostAware(bounds, profile, depth=most)
        survival = CalibratedConfidence() if options.survival == "confidence" else head
        return CostAware(bounds, profile, survival)
    if name == "oracle":
        return Oracle(bounds)
    return Constant(bounds)
