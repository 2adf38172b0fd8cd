"""``tree``: the most probable continuations, which branch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from specdec_plugins.decoding.controllers.base import Controller, Needs
from specdec_plugins.decoding.controllers.policy import DraftingPolicy, Parts, register_policy
from specdec_plugins.decoding.options import option
from specdec_plugins.decoding.step_result import StepResult


class Tree(Controller):
    """Drafts trees of so many tokens in all: broad where the drafter is unsure, deep where it is
    sure.

    Which they are, it says itself, with every draft. The slots after a rejected token are verified
    once more, after the verifier's own, as long as they promise enough: that costs no pass of the
    drafter. Each row is decided by itself, so that relaxed output does not depend on what else is
    in the batch, but for ``max_rows``.
    """

    name = "tree"
    steady = True

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


@register_policy
@dataclass(frozen=True, kw_only=True)
class TreePolicy(DraftingPolicy):
    """See :class:`Tree`."""

    name: ClassVar[str] = "tree"
    help: ClassVar[str] = (
        "the most probable continuations, which branch, or what the last step left of them"
    )

    trees: ClassVar[bool] = True

    tree_nodes: int = option(
        8,
        "tree: how many tokens of a tree to verify",
        least=1,
        most=1024,
        sweep=(8, 12, 16, 20, 24),
        axis="nodes",
    )
    redraft_below: float = option(
        2.0,
        "tree: draft anew where what is left of the last draft promises fewer accepted tokens a "
        "sentence; inf: always",
        least=0,
    )
    max_rows: int | None = option(
        None,
        "tree: larger batches are decoded without drafts (default: no batch is too large; auto "
        "sets it where drafts cost time, but not for relaxed output, which would depend on it)",
        least=1,
    )

    @property
    def looks_around(self) -> bool:
        return self.max_rows is not None

    @property
    def idle(self) -> frozenset[str]:
        return frozenset({"min_draft"})

    def build(self, parts: Parts) -> Tree:
        return Tree(parts.bounds.most, parts.depth, self.redraft_below, self.max_rows)
