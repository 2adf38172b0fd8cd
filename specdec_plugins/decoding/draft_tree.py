"""Drafts that branch: a tree of likely continuations, verified in one pass. No fairseq in here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.decoding.compiled import compiled
from specdec_plugins.decoding.indices import indices


@dataclass(frozen=True)
class Path:
    """The way through a tree that was accepted, and what comes after it."""

    nodes: Tensor
    """``(rows, longest + 1)`` the root, the accepted nodes in order, then whatever."""
    tokens: Tensor
    """``(rows, longest + 1)`` of the accepted nodes; the verifier's own, unless the last of them is
    EOS; then whatever."""
    counts: Tensor
    """``(3, rows)`` how many these are, how many of them the nodes', and 1 where EOS is among them,
    else 0."""
    last: list[int]
    """Of every row the last of these tokens."""


@dataclass(frozen=True)
class DraftTree:
    """How drafted tokens hang together. Node 0 is the root, the last committed token; node i > 0
    holds drafted token i - 1. Every node's parent comes before it, and none is an EOS's."""

    depths: Tensor
    """``(rows, nodes + 1)`` tokens from the root to each node, its own included; 0 of the root."""
    ancestors: Tensor
    """``(rows, nodes + 1, nodes + 1)`` bool: the nodes that each node comes after, and itself."""
    parents: Tensor
    """``(rows, nodes)`` of all but the root."""
    host_parents: Any
    """The same, as an array on the host."""
    host_tokens: Any
    """``(rows, nodes)`` the drafted tokens, likewise."""
    promised: list[float]
    """How many of each row's tokens would be accepted if each were as often as it is probable, to
    the drafter."""

    def follow(self, good: Tensor, best: Tensor, eos: int, limits: Tensor | None = None) -> Path:
        """The longest way from the root over nodes that are ``good``; of several, the likeliest.

        With strict acceptance there is only one. With relaxed acceptance a way may leave the
        verifier's best token, though that is in the tree, for one that goes on longer.

        It is found on the host, by compiled code: a GPU copies there what is good and best.

        Args:
            good: ``(rows, nodes)`` whether each node's token is accepted after its parent.
            best: ``(rows, nodes + 1)`` the verifier's own token after each node.
            limits: ``(rows,)`` how many nodes of each row there are; None for all.
        """
        if limits is not None:
            good = good & (indices(good.size(1), good.device) < limits[:, None])
        answers = good.cpu().numpy(), best.cpu().numpy()
        *found, last = _follow(self.host_parents, self.host_tokens, *answers, eos)
        nodes, tokens, counts = (torch.from_numpy(array).to(good.device) for array in found)
        return Path(nodes, tokens, counts, last.tolist())


@compiled
def _follow(parents: Any, tokens: Any, good: Any, best: Any, eos: Any) -> Any:
    """What a :class:`Path` holds; see :meth:`DraftTree.follow`."""
    rows, count = parents.shape
    counts, ends = np.zeros((3, rows), np.int64), np.zeros(rows, np.int64)
    # How far each node is from the root; -1 if it is not reached.
    reached = np.full(count + 1, -1)
    for row in range(rows):
        reached[0] = 0
        for node in range(1, count + 1):
            before = reached[parents[row, node - 1]]
            reached[node] = before + 1 if good[row, node - 1] and before >= 0 else -1
            # Of equals, the first.
            if reached[node] > counts[1, row]:
                ends[row], counts[1, row] = node, reached[node]
    nodes = np.zeros((rows, counts[1].max() + 1), np.int64)
    chosen, last = np.zeros_like(nodes), np.zeros(rows, np.int64)
    for row in range(rows):
        node, accepted = ends[row], counts[1, row]
        if node > 0 and tokens[row, node - 1] == eos:
            counts[0, row], counts[2, row] = accepted, 1
        else:
            chosen[row, accepted] = best[row, node]
            counts[0, row], counts[2, row] = accepted + 1, best[row, node] == eos
        for place in range(accepted, 0, -1):
            nodes[row, place], chosen[row, place - 1] = node, tokens[row, node - 1]
            node = parents[row, node - 1]
        last[row] = chosen[row, counts[0, row] - 1]
    return nodes, chosen, counts, last
