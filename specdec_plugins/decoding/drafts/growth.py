"""Growing trees from a lattice, and going on after a step, by compiled code.

A tree has some twenty tokens, each found by comparing a few numbers: as tensor code that is a
hundred small calls, compiled it is ten microseconds.
"""

from __future__ import annotations

import math

import numpy as np

from specdec_plugins.decoding.kernels import Bools, Floats, Ints, Scores, compiled

HostLattice = tuple[Ints, Scores, Scores]
"""A lattice's candidates, first and following scores; see :class:`Lattice`."""
Tree = tuple[Ints, Ints, Ints, Bools, Floats]
"""Tokens, parents, depths, ancestors and gains of a row of a :class:`TreeDraft`."""
Trees = tuple[Ints, Ints, Ints, Bools, Floats, Floats]
"""The same of all rows, and each one's expected accepted length."""


@compiled
def _first_best(chances: Floats) -> int:
    """Return the index of the first largest chance; -1 if all are minus infinity."""
    best, best_index = -np.inf, -1
    for index, chance in enumerate(chances):
        if chance > best:
            best, best_index = chance, index
    return best_index


@compiled
def _next_best(scores: Scores, before: int) -> int:
    """Return the candidate after ``before`` by score, of equals by index; -1 if there is none.

    The best candidate comes after -1.
    """
    best = -1
    for index, score in enumerate(scores):
        later = before < 0 or score < scores[before] or (score == scores[before] and index > before)
        if later and (best < 0 or score > scores[best]):
            best = index
    return best


@compiled
def _log_sum_exp(scores: Scores, largest: float) -> float:
    total = 0.0
    for score in scores:
        total += math.exp(score - largest)
    return largest + math.log(total)


@compiled
def _offer(
    node: int,
    before: int,
    lattice: HostLattice,
    bounds: tuple[int, int, int, int],
    tree: Tree,
    offers: tuple[Ints, Ints, Floats, Floats],
) -> None:
    """Offer a node's best child after candidate ``before``; see :func:`_grow`."""
    _, first, following = lattice
    tokens, _, depths, _, gain = tree
    cells, child, chance, shift = offers
    slot, _, slots, eos = bounds
    at = slot + depths[node]
    chance[node] = -np.inf
    if at >= slots or (node > 0 and tokens[node - 1] == eos):
        return
    scores = first if at == 0 else following[at - 1, cells[node]]
    best = _next_best(scores, before)
    if best >= 0:
        if before < 0:
            shift[node] = gain[node] - _log_sum_exp(scores, scores[best])
        child[node], chance[node] = best, scores[best] + shift[node]


@compiled
def _grow(lattice: HostLattice, bounds: tuple[int, int, int, int], tree: Tree) -> float:
    """Fill in one row's tree, and return its expected accepted length.

    Every node that is taken offers its best child that is not: the most probable of all offered
    children is taken next.

    Args:
        lattice: a row's candidates, first and following scores; see :class:`Lattice`.
        bounds: the first slot to fill, the candidate of the slot before it that the tree follows,
            the slot to stop at, and EOS.
        tree: the first of :data:`Trees`, all zeros but tokens, full of pad.
    """
    tokens, parents, depths, ancestors, gain = tree
    count, slot = len(depths), bounds[0]
    # Each node's candidate and offered child, the child's log-probability, and the shift of scores
    # after the node to log-probabilities.
    cells, child = np.zeros((2, count), np.int64)
    offers = cells, child, np.full(count, -np.inf), np.zeros(count)
    cells[0], chance, expected = bounds[1], offers[2], 0.0
    for node in range(count):
        ancestors[node, node] = True
        if node > 0:
            parent = _first_best(chance[:node])
            if parent < 0:
                # Nothing is left: what fills up follows the root, and is not accepted.
                depths[node], gain[node], ancestors[node, 0] = 1, -np.inf, True
                continue
            cells[node], gain[node] = child[parent], chance[parent]
            depths[node], parents[node - 1] = depths[parent] + 1, parent
            ancestors[node] |= ancestors[parent]
            tokens[node - 1] = lattice[0][slot + depths[parent], cells[node]]
            expected += math.exp(gain[node])
            _offer(parent, cells[node], lattice, bounds, tree, offers)
        _offer(node, -1, lattice, bounds, tree, offers)
    return expected


@compiled
def grow_some(
    lattice: HostLattice, positions: Ints, rows: Ints, eos: int, pad: int, trees: Trees
) -> None:
    """Fill in the trees of some rows, and the expected accepted length of each."""
    candidates, first, following = lattice
    tokens, parents, depths, ancestors, gains, expected = trees
    for row in rows:
        tokens[row], parents[row], depths[row], ancestors[row] = pad, 0, 0, False
        gains[row] = 0.0
        expected[row] = _grow(
            (candidates[row], first[row], following[row]),
            (positions[0, row], positions[1, row], positions[2, row], eos),
            (tokens[row], parents[row], depths[row], ancestors[row], gains[row]),
        )


@compiled
def grow_all(lattice: HostLattice, positions: Ints, nodes: int, eos: int, pad: int) -> Trees:
    """Return every row's tree; see :meth:`LatticeTrees.grow`."""
    rows = len(lattice[0])
    tokens, parents = np.full((rows, nodes), pad), np.zeros((rows, nodes), np.int64)
    depths = np.zeros((rows, nodes + 1), np.int64)
    ancestors = np.zeros((rows, nodes + 1, nodes + 1), np.bool_)
    gains = np.zeros((rows, nodes + 1))
    trees = tokens, parents, depths, ancestors, gains, np.zeros(rows)
    grow_some(lattice, positions, np.arange(rows), eos, pad, trees)
    return trees


@compiled
def advance(candidates: Ints, positions: Ints, gone: Ints) -> bool:
    """Move ``positions`` on; see :meth:`LatticeTrees.advance`."""
    rows, _, width = candidates.shape
    left = False
    for row in range(rows):
        at, slots = positions[0, row] + gone[0, row], positions[2, row]
        positions[0, row] = slots
        if at < slots:
            for cell in range(width):
                if candidates[row, at, cell] == gone[1, row]:
                    positions[0, row], positions[1, row] = at + 1, cell
                    left |= at + 1 < slots
    return left
