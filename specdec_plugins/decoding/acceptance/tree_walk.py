"""The accepted path through drafted tokens: through a tree, or along a chain."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.decoding.acceptance.verification import Accepted
from specdec_plugins.decoding.kernels import Bools, Ints, compiled, on_host


def walk(
    tree: tuple[Ints, Ints],
    good: Tensor,
    verifier_tokens: Tensor,
    eos: int,
    lengths: list[int],
    room: list[int] | None,
) -> Accepted:
    """Return the path from the root over ``good`` nodes, then the verifier's token.

    With relaxed acceptance there may be several paths: this one goes to the verifier's token
    where the tree has it, else to the child with the longest good path, the likeliest of equals.
    It is found on the host, which waits for a GPU.

    Args:
        tree: ``(rows, nodes)`` each: parents, where 0 is the root and node i > 0 holds drafted
            token i - 1; and the drafted tokens, by probability.
        good: ``(rows, nodes)`` True for nodes that may be committed after their parents.
        verifier_tokens: ``(rows, nodes + 1)`` after each node.
        lengths: the number of nodes of each row.
        room: the number of tokens of each row before an EOS is forced, which then is not its
            node's; None where no node is as deep.
    """
    bounds = np.array((lengths, [good.size(1)] * len(lengths) if room is None else room))
    nodes, chosen, counts = _walk(*tree, on_host(good), on_host(verifier_tokens), eos, bounds)
    tokens, sources = (torch.from_numpy(array).to(good.device) for array in (chosen, nodes))
    committed, accepted, verified, last = counts.tolist()
    finished = [token == eos for token in last]
    return Accepted(tokens, sources, committed, accepted, verified, last, finished)


def walk_along(
    drafted: Tensor,
    good: Tensor,
    verifier_tokens: Tensor,
    eos: int,
    lengths: Tensor,
    room: list[int] | None,
) -> Accepted:
    """Return the longest good beginning of chains ``(rows, slots)``, up to EOS; see :func:`walk`.

    Args:
        verifier_tokens: ``(rows, slots + 1)`` after each slot, or ``(rows, 1)`` after the accepted
            ones.
        lengths: ``(rows,)`` the number of tokens of each row.
    """
    rows, slots = drafted.shape
    tree = _chain(rows, slots), on_host(drafted)
    if verifier_tokens.size(1) <= slots:
        verifier_tokens = verifier_tokens.expand(-1, slots + 1)
    return walk(tree, good, verifier_tokens, eos, lengths.tolist(), room)


@lru_cache(maxsize=4096)
def _chain(rows: int, slots: int) -> Ints:
    """Return ``(rows, slots)`` the parents of a chain's nodes; not to be changed."""
    return np.tile(np.arange(slots), (rows, 1))


@compiled
def _child(node: int, parents: Ints, tokens: Ints, good: Bools, best: int, beyond: Ints) -> int:
    """Return the next node of the path after ``node``; 0 if there is none."""
    next_node = 0
    for child in range(node + 1, len(parents) + 1):
        if parents[child - 1] == node and good[child - 1]:
            if tokens[child - 1] == best:
                return child
            if next_node == 0 or beyond[child] > beyond[next_node]:
                next_node = child
    return next_node


@compiled
def _walk(
    parents: Ints, tokens: Ints, good: Bools, best: Ints, eos: int, bounds: Ints
) -> tuple[Ints, Ints, Ints]:
    """Return the sources, tokens and counts (committed to last) of an :class:`Accepted`.

    ``bounds``: ``(2, rows)`` lengths and room.
    """
    lengths, room = bounds
    rows, longest = parents.shape
    nodes, chosen = np.zeros((2, rows, longest + 1), np.int64)
    counts = np.zeros((4, rows), np.int64)
    width = 0
    for row in range(rows):
        length = min(lengths[row], longest)
        # The length of the longest good path after each node.
        beyond = np.zeros(longest + 1, np.int64)
        for node in range(length, 0, -1):
            if good[row, node - 1]:
                parent = parents[row, node - 1]
                beyond[parent] = max(beyond[parent], beyond[node] + 1)
        node, accepted = 0, 0
        while node == 0 or tokens[row, node - 1] != eos:
            candidates = parents[row, :length], tokens[row], good[row]
            child = _child(node, *candidates, best[row, node], beyond)
            if child == 0:
                break
            accepted += 1
            node = child
            nodes[row, accepted], chosen[row, accepted - 1] = node, tokens[row, node - 1]
        committed = accepted
        if node == 0 or tokens[row, node - 1] != eos:
            chosen[row, accepted] = best[row, node]
            committed += 1
        counts[0, row] = committed
        counts[1, row] = min(accepted, room[row])
        counts[2, row] = length
        counts[3, row] = chosen[row, committed - 1]
        width = max(width, accepted + 1)
    return nodes[:, :width].copy(), chosen[:, :width].copy(), counts
