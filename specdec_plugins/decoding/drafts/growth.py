"""Growing trees from a lattice, and going on after a step, by compiled code.

A tree has some twenty tokens, each found by comparing a few numbers: as tensor code that is a
hundred small calls, compiled it is ten microseconds.
"""

from __future__ import annotations

import math

import numpy as np

from specdec_plugins.decoding.kernels import Bools, Floats, Ints, Scores
from specdec_plugins.engines.compiling import compiled

#: A lattice's candidates, first and following scores; see :class:`Lattice`.
HostLattice = tuple[Ints, Scores, Scores]
#: Tokens, parents, depths, ancestors and gains of a row of a :class:`TreeDraft`.
Tree = tuple[Ints, Ints, Ints, Bools, Floats]
#: The same of all rows, and each one's expected accepted length.
Trees = tuple[Ints, Ints, Ints, Bools, Floats, Floats]


@compiled
def _largest(chances: Floats) -> int:
    """Return the index of the first largest chance; -1 if all are minus infinity."""
    best = -1
    largest = -np.inf
    for index, chance in enumerate(chances):
        if chance > largest:
            best = index
            largest = chance
    return best


@compiled
def _follow(scores: Scores, gain: float, chances: Floats) -> None:
    """Fill in the log-probabilities of the paths to the children of a node of ``gain``."""
    top = scores.max()
    total = 0.0
    for score in scores:
        total += math.exp(score - top)
    shift = gain - (top + math.log(total))
    for child, score in enumerate(scores):
        chances[child] = score + shift


@compiled
def _grow(lattice: HostLattice, bounds: tuple[int, int, int, int], tree: Tree) -> float:
    """Fill in one row's tree, and return its expected accepted length.

    Every node that is taken offers its best child that is not; the best offer is taken next.

    Args:
        bounds: the first slot to fill, the candidate of the slot before it that the tree follows,
            the slot to stop at, and EOS.
        tree: the first of :data:`Trees`, all zeros but tokens, full of pad.
    """
    candidates, first, following = lattice
    begin, cell, slots, eos = bounds
    tokens, parents, depths, ancestors, gain = tree
    count = len(depths)
    expected = 0.0
    # Each node's candidate, the log-probabilities of the paths to its children, and the best.
    cells, offered = np.zeros((2, count), np.int64)
    chances = np.full((count, candidates.shape[1]), -np.inf)
    offers = np.full(count, -np.inf)
    cells[0] = cell
    for node in range(count):
        ancestors[node, node] = True
        if node > 0:
            parent = _largest(offers[:node])
            if parent < 0:
                # Nothing is left: what fills up follows the root, and is not accepted.
                depths[node] = 1
                gain[node] = -np.inf
                ancestors[node, 0] = True
                continue
            cells[node] = offered[parent]
            gain[node] = offers[parent]
            depths[node] = depths[parent] + 1
            parents[node - 1] = parent
            for other in range(node):
                ancestors[node, other] |= ancestors[parent, other]
            tokens[node - 1] = candidates[begin + depths[parent], cells[node]]
            expected += math.exp(gain[node])
            chances[parent, cells[node]] = -np.inf
            offered[parent] = _largest(chances[parent])
            offers[parent] = chances[parent, offered[parent]]
        slot = begin + depths[node]
        if slot < slots and (node == 0 or tokens[node - 1] != eos):
            scores = first if slot == 0 else following[slot - 1, cells[node]]
            _follow(scores, gain[node], chances[node])
            offered[node] = _largest(chances[node])
            offers[node] = chances[node, offered[node]]
    return expected


@compiled
def grow_all(lattice: HostLattice, positions: Ints, nodes: int, eos: int, pad: int) -> Trees:
    """Return every row's tree; see :class:`.TreeDrafting`."""
    candidates, first, following = lattice
    rows = len(candidates)
    tokens = np.full((rows, nodes), pad)
    parents = np.zeros((rows, nodes), np.int64)
    depths = np.zeros((rows, nodes + 1), np.int64)
    ancestors = np.zeros((rows, nodes + 1, nodes + 1), np.bool_)
    gains = np.zeros((rows, nodes + 1))
    expected = np.zeros(rows)
    for row in range(rows):
        expected[row] = _grow(
            (candidates[row], first[row], following[row]),
            (positions[0, row], positions[1, row], positions[2, row], eos),
            (tokens[row], parents[row], depths[row], ancestors[row], gains[row]),
        )
    return tokens, parents, depths, ancestors, gains, expected


@compiled
def advance(candidates: Ints, positions: Ints, gone: Ints) -> bool:
    """Move ``positions`` on; return whether anything is left of any row.

    ``gone``: ``(2, rows)`` accepted tokens, and the verifier's token after them.
    """
    rows, _, width = candidates.shape
    left = False
    for row in range(rows):
        at = positions[0, row] + gone[0, row]
        slots = positions[2, row]
        positions[0, row] = slots
        if at < slots:
            for cell in range(width):
                if candidates[row, at, cell] == gone[1, row]:
                    positions[0, row] = at + 1
                    positions[1, row] = cell
                    left |= at + 1 < slots
    return left
