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
Trees = tuple[Ints, Ints, Ints, Bools, Floats, Floats]
"""Tokens, parents, depths, ancestors and gains of a :class:`TreeDraft`, and the expected accepted
length of each row."""


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
    scores: Scores,
    open_: tuple[Ints, Floats, Floats],
    gain: float,
) -> None:
    """Offer a node's best child after candidate ``before``; see ``open_`` in :func:`_grow`."""
    child, chance, shift = open_
    best = _next_best(scores, before)
    if best >= 0:
        if before < 0:
            shift[node] = gain - _log_sum_exp(scores, scores[best])
        child[node], chance[node] = best, scores[best] + shift[node]


@compiled
def _grow(
    lattice: HostLattice,
    start: tuple[int, int, int],
    eos: int,
    tree: tuple[Ints, Ints, Ints, Bools, Floats],
) -> float:
    """Fill in one row's tree, and return its expected accepted length.

    Every node that is taken offers its best child that is not: the most probable of all offered
    children is taken next.

    Args:
        lattice: a row's candidates, first and following scores; see :class:`Lattice`.
        start: the first slot to fill, the candidate of the slot before it that the tree follows,
            and the slot to stop at.
        tree: tokens, full of pad, and parents, depths, ancestors and gains of a
            :class:`TreeDraft`, all zeros.
    """
    candidates, first, following = lattice
    tokens, parents, depths, ancestors, gain = tree
    count, (slot, cell, slots) = len(depths), start
    cells = np.zeros(count, np.int64)  # each node's candidate
    cells[0] = cell
    # Each node's offered child, that child's log-probability, and the shift of scores after the
    # node to log-probabilities.
    child, chance, shift = np.zeros(count, np.int64), np.full(count, -np.inf), np.zeros(count)
    expected = 0.0
    for node in range(count):
        parent = -1
        if node > 0:
            parent = _first_best(chance[:node])
            if parent < 0:
                # Nothing is left: what fills up follows the root, and is not accepted.
                depths[node], gain[node] = 1, -np.inf
                ancestors[node, 0] = ancestors[node, node] = True
                continue
            cells[node], gain[node] = child[parent], chance[parent]
            depths[node], parents[node - 1] = depths[parent] + 1, parent
            ancestors[node] = ancestors[parent]
            tokens[node - 1] = candidates[slot + depths[parent], cells[node]]
            expected += math.exp(gain[node])
        ancestors[node, node] = True
        for offering in (parent, node):
            if offering < 0:
                continue
            before = -1 if offering == node else cells[node]
            at = slot + depths[offering]
            chance[offering] = -np.inf
            if at < slots and (offering == 0 or tokens[offering - 1] != eos):
                scores = first if at == 0 else following[at - 1, cells[offering]]
                _offer(offering, before, scores, (child, chance, shift), gain[offering])
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
            (positions[0, row], positions[1, row], positions[2, row]),
            eos,
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
