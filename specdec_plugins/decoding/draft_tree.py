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
    host_counts: list[list[int]]
    """The same on the host."""
    last: list[int]
    """Of every row the last of these tokens."""
    straight: bool
    """Whether in every row the accepted nodes are the first ones, as in a chain."""


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

    def follow(
        self,
        good: Tensor,
        best: Tensor,
        eos: int,
        limits: Tensor | None = None,
        room: list[int] | None = None,
    ) -> Path:
        """The way from the root over nodes that are ``good``.

        With strict acceptance there is only one. With relaxed acceptance it goes to the verifier's
        own token wherever the tree has that; else to where it goes on longest, of equals to the
        likeliest.

        It is found on the host, by compiled code: a GPU copies there what is good and best.

        Args:
            good: ``(rows, nodes)`` whether each node's token is accepted after its parent.
            best: ``(rows, nodes + 1)`` the verifier's own token after each node.
            limits: ``(rows,)`` how many nodes of each row there are; None for all.
            room: how many tokens of each row may come before an EOS is forced on it, which is then
                not its node's; None where no node is as deep.
        """
        if limits is not None:
            good = good & (indices(good.size(1), good.device) < limits[:, None])
        answers = good.cpu().numpy(), best.cpu().numpy()
        most = np.full(len(good), good.size(1)) if room is None else np.array(room)
        *found, last, straight = _follow(self.host_parents, self.host_tokens, *answers, eos, most)
        nodes, tokens, counts = (torch.from_numpy(array).to(good.device) for array in found)
        return Path(nodes, tokens, counts, found[2].tolist(), last.tolist(), straight)


@compiled
def _child(node: Any, parents: Any, tokens: Any, good: Any, own: Any, beyond: Any) -> Any:
    """Where the way goes on after a node: to the verifier's ``own`` token; if that is not there, to
    where it goes on longest, of equals to the likeliest; 0 if nowhere."""
    found = 0
    for child in range(node + 1, len(parents) + 1):
        if parents[child - 1] == node and good[child - 1]:
            if tokens[child - 1] == own:
                return child
            if found == 0 or beyond[child] > beyond[found]:
                found = child
    return found


@compiled
def _follow(parents: Any, tokens: Any, good: Any, best: Any, eos: Any, room: Any) -> Any:
    """What a :class:`Path` holds; see :meth:`DraftTree.follow`."""
    rows, count = parents.shape
    nodes, chosen = np.zeros((2, rows, count + 1), np.int64)
    counts, last = np.zeros((3, rows), np.int64), np.zeros(rows, np.int64)
    straight = True
    for row in range(rows):
        # How many good tokens may follow each node, one after another.
        beyond = np.zeros(count + 1, np.int64)
        for node in range(count, 0, -1):
            if good[row, node - 1]:
                parent = parents[row, node - 1]
                beyond[parent] = max(beyond[parent], beyond[node] + 1)
        node, accepted = 0, 0
        while True:
            own = best[row, node]
            child = _child(node, parents[row], tokens[row], good[row], own, beyond)
            if child == 0:
                break
            accepted += 1
            node = child
            nodes[row, accepted], chosen[row, accepted - 1] = node, tokens[row, node - 1]
            straight &= node == accepted
        counts[1, row] = min(accepted, room[row])
        if node > 0 and tokens[row, node - 1] == eos:
            last[row], counts[0, row] = eos, accepted
        else:
            last[row], counts[0, row] = best[row, node], accepted + 1
            chosen[row, accepted] = last[row]
        counts[2, row] = last[row] == eos
    width = counts[1].max() + 1
    return nodes[:, :width].copy(), chosen[:, :width].copy(), counts, last, straight
