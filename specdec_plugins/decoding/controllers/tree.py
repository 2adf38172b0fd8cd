"""``tree``: the most probable continuations, which branch."""

from __future__ import annotations

from specdec_plugins.decoding.controllers.base import Controller, Needs
from specdec_plugins.decoding.controllers.registry import (
    MAX_ROWS,
    MIN_DRAFT,
    TREE_NODES,
    Policy,
    Style,
    register_policy,
)
from specdec_plugins.decoding.options import Option
from specdec_plugins.decoding.step_result import StepResult

REDRAFT_BELOW = Option(
    "redraft_below", 1.5,
    "tree: draft anew where what is left of the last draft promises fewer accepted tokens a "
    "sentence; inf: always (cost-aware decides by itself)",
    least=0,
)  # fmt: skip


class Tree(Controller):
    """So many tokens in all: broad where the drafter is unsure, deep where it is sure.

    Which they are, it says itself, with every draft. The slots after a rejected token are verified
    once more, after the verifier's own, as long as they promise enough: that costs no pass of the
    drafter. Each row is decided by itself, so that relaxed output does not depend on what else is
    in the batch, but for ``max_rows``.
    """

    name = "tree"

    def __init__(
        self, nodes: int, depth: int, redraft_below: float, max_rows: int | None = None
    ) -> None:
        """
        Args:
            depth: how many tokens deep trees are at most.
            redraft_below: how many accepted tokens what is left of a draft must promise, a row.
            max_rows: batches that begin with more are decoded without drafts; None: none is.
        """
        self.needs = Needs(nodes, depth)
        self.reuse_above = redraft_below
        self._max_rows = max_rows
        self._nodes = nodes

    def start(self, rows: int) -> list[int]:
        """See the base class."""
        # To begin late, the drafter would have to read all that is there by then.
        large = self._max_rows is not None and rows > self._max_rows
        self._nodes = 0 if large else self.needs.most
        return [self._nodes] * rows

    def observe(self, result: StepResult) -> list[int]:
        """See the base class."""
        return [self._nodes] * len(result.rows)


register_policy(
    Policy(
        "tree",
        "the most probable continuations, which branch, or what the last step left of them",
        build=lambda options, parts: Tree(
            parts.bounds.most, parts.depth, options[REDRAFT_BELOW], options[MAX_ROWS]
        ),
        options=(TREE_NODES, REDRAFT_BELOW, MAX_ROWS),
        trees=lambda options: True,
        looks_around=lambda options: options[MAX_ROWS] is not None,
        styles={"tree": Style("#56B4E9", "v")},
        rank=50,
        idle=lambda options: {MIN_DRAFT.name},
    )
)
