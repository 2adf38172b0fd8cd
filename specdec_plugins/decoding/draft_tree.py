"""Drafts that branch: a tree of likely continuations, verified in one pass. No fairseq in here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.decoding.compiled import compiled


@dataclass(frozen=True)
class Path:
    """The way through a tree that was accepted."""

    nodes: Tensor
    """``(rows, longest + 1)`` the root, the accepted nodes in order, then whatever."""
    accepted: Tensor
    """``(rows,)`` how many they are, the root not counted."""


@dataclass(frozen=True)
class DraftTree:
    """How drafted tokens hang together. Node 0 is the root, the last committed token; node i > 0
    holds drafted token i - 1. Every node's parent comes before it."""

    depths: Tensor
    """``(rows, nodes + 1)`` tokens from the root to each node, its own included; 0 of the root."""
    ancestors: Tensor
    """``(rows, nodes + 1, nodes + 1)`` bool: the nodes that each node comes after, and itself."""
    parents: Tensor
    """``(rows, nodes)`` of all but the root."""
    host_parents: Any
    """The same, as an array on the host."""
    promised: list[float]
    """How many of each row's tokens would be accepted if each were as often as it is probable, to
    the drafter."""

    def follow(self, good: Tensor, limits: Tensor | None = None) -> Path:
        """The longest way from the root over nodes that are ``good``; of several, the likeliest.

        With strict acceptance there is only one. With relaxed acceptance a way may leave the
        verifier's best token, though that is in the tree, for one that goes on longer.

        It is found on the host, to which a GPU copies what is good.

        Args:
            good: ``(rows, nodes)`` whether each node's token is accepted after its parent.
            limits: ``(rows,)`` how many nodes of each row there are; None for all.
        """
        if limits is not None:
            index = torch.arange(good.size(1), device=good.device)
            good = good & (index < limits[:, None])
        nodes, accepted = _follow(self.host_parents, good.cpu().numpy())
        return Path(
            torch.from_numpy(nodes).to(good.device), torch.from_numpy(accepted).to(good.device)
        )


@compiled
def _follow(parents: Any, good: Any) -> Any:
    """See :meth:`DraftTree.follow`."""
    rows, count = parents.shape
    # How far each node is from the root; -1 if it is not reached.
    reached = np.full((rows, count + 1), -1)
    reached[:, 0] = 0
    last, accepted = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    for row in range(rows):
        for node in range(1, count + 1):
            before = reached[row, parents[row, node - 1]]
            if good[row, node - 1] and before >= 0:
                reached[row, node] = before + 1
                # Of equals, the first.
                if before + 1 > accepted[row]:
                    last[row], accepted[row] = node, before + 1
    nodes = np.zeros((rows, accepted.max() + 1), np.int64)
    for row in range(rows):
        node = last[row]
        for place in range(accepted[row], 0, -1):
            nodes[row, place] = node
            node = parents[row, node - 1]
    return nodes, accepted
