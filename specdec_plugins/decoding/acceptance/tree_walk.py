"""The way through drafted tokens that is accepted: through a tree, or along a chain."""

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
    own: Tensor,
    eos: int,
    lengths: list[int],
    room: list[int] | None,
) -> Accepted:
    """Return the way from the root over nodes that are ``good``, then the verifier's own token.

    With strict acceptance there is only one. With relaxed acceptance it goes to the verifier's own
    token wherever the tree has that; else to where it goes on longest, of equals to the likeliest.

    It is found on the host, by compiled code: a GPU copies there what is good and its own tokens.

    Args:
        tree: ``(rows, nodes)`` each: the node that each comes after, where 0 is the root and node
            i > 0 holds drafted token i - 1; and the drafted tokens, by probability.
        good: ``(rows, nodes)`` whether each may be committed after its parent.
        own: ``(rows, nodes + 1)`` the verifier's own token after each node.
        lengths: how many nodes of each row there are.
        room: how many tokens of each row may come before an EOS is forced on it, which is then not
            its node's; None where no node is as deep.
    """
    bounds = np.array((lengths, [good.size(1)] * len(lengths) if room is None else room))
    given = *tree, on_host(good), on_host(own)
    nodes, chosen, counts = _walk(*given, eos, bounds)
    tokens = torch.from_numpy(chosen).to(good.device)
    sources = torch.from_numpy(nodes).to(good.device)
    committed, accepted, verified, last = counts.tolist()
    finished = [token == eos for token in last]
    return Accepted(tokens, sources, committed, accepted, verified, last, finished)


def walk_along(
    drafted: Tensor, good: Tensor, own: Tensor, eos: int, lengths: Tensor, room: list[int] | None
) -> Accepted:
    """As :func:`walk`, of chains: the longest good beginning of a draft, no further than EOS.

    Args:
        drafted, good: ``(rows, slots)``, each token following the one before it.
        own: ``(rows, slots + 1)`` the verifier's token at every place, or ``(rows, 1)`` at the only
            one that counts.
        lengths: ``(rows,)`` how many of the tokens are each row's.
    """
    rows, slots = drafted.shape
    if own.size(1) <= slots:
        own = own.expand(-1, slots + 1)
    tree = _chain(rows, slots), on_host(drafted)
    return walk(tree, good, own, eos, lengths.tolist(), room)


@lru_cache(maxsize=4096)
def _chain(rows: int, slots: int) -> Ints:
    """``(rows, slots)`` the parents of a chain's nodes; not to be changed."""
    return np.tile(np.arange(slots), (rows, 1))


@compiled
def _child(node: int, parents: Ints, tokens: Ints, good: Bools, own: int, beyond: Ints) -> int:
    """Return where the way goes on after a node: to the verifier's ``own`` token; if that is not
    there, to where it goes on longest, of equals to the likeliest; 0 if nowhere."""
    found = 0
    for child in range(node + 1, len(parents) + 1):
        if parents[child - 1] == node and good[child - 1]:
            if tokens[child - 1] == own:
                return child
            if found == 0 or beyond[child] > beyond[found]:
                found = child
    return found


@compiled
def _walk(
    parents: Ints, tokens: Ints, good: Bools, best: Ints, eos: int, bounds: Ints
) -> tuple[Ints, Ints, Ints]:
    """Return the sources, tokens and counts (committed to last) of an :class:`Accepted`.

    ``bounds``: ``(2, rows)`` lengths and room of :func:`walk`.
    """
    lengths, room = bounds
    rows, most = parents.shape
    nodes, chosen = np.zeros((2, rows, most + 1), np.int64)
    counts = np.zeros((4, rows), np.int64)
    width = 0
    for row in range(rows):
        length = min(lengths[row], most)
        # How many good tokens may follow each node, one after another.
        beyond = np.zeros(most + 1, np.int64)
        for node in range(length, 0, -1):
            if good[row, node - 1]:
                parent = parents[row, node - 1]
                beyond[parent] = max(beyond[parent], beyond[node] + 1)
        node, accepted = 0, 0
        while node == 0 or tokens[row, node - 1] != eos:
            own = best[row, node]
            child = _child(node, parents[row, :length], tokens[row], good[row], own, beyond)
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
