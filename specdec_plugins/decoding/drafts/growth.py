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
"""Tokens, parents, depths, ancestors and gains as of a :class:`TreeDraft`, and what is expected."""


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
def _grow(
    lattice: HostLattice,
    place: tuple[int, int, int],
    eos: int,
    tree: tuple[Ints, Ints, Ints, Bools, Floats],
) -> float:
    """Fill in one row's tree; see :meth:`LatticeTrees.grow`.

    Returns how many of its tokens would be accepted if each were as often as it is probable.

    Of every node that is taken, the best child that is not is known: of all these, the most
    probable is taken next.

    Args:
        lattice: a row's candidates, first and following scores; see :class:`Lattice`.
        place: the first slot to fill, the candidate of the slot before it that the tree follows,
            and the slot to stop at.
        tree: tokens, full of pad, and parents, depths, ancestors and gains as of a
            :class:`TreeDraft`, all zeros.
    """
    candidates, first, following = lattice
    tokens, parents, depths, ancestors, gain = tree
    count, (slot, cell, slots) = len(depths), place
    # For each node: its candidate, and the shift of the scores after it to log-probabilities; then
    # its best child that is not taken yet, and that child's log-probability.
    cells, shift = np.zeros(count, np.int64), np.zeros(count)
    child, chance = np.zeros(count, np.int64), np.full(count, -np.inf)
    cells[0] = cell
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
        for looking in (parent, node):
            if looking < 0:
                continue
            at = slot + depths[looking]
            chance[looking] = -np.inf
            if at >= slots or (looking > 0 and tokens[looking - 1] == eos):
                continue
            scores = first if at == 0 else following[at - 1, cells[looking]]
            best = _next_best(scores, -1 if looking == node else cells[node])
            if best >= 0:
                if looking == node:
                    shift[node] = gain[node] - _log_sum_exp(scores, scores[best])
                child[looking], chance[looking] = best, scores[best] + shift[looking]
    return expected


@compiled
def grow_some(
    lattice: HostLattice, places: Ints, rows: Ints, eos: int, pad: int, trees: Trees
) -> None:
    """Fill in the trees of some rows, and the expected accepted length of each."""
    candidates, first, following = lattice
    tokens, parents, depths, ancestors, gains, expected = trees
    for row in rows:
        tokens[row], parents[row], depths[row], ancestors[row] = pad, 0, 0, False
        gains[row] = 0.0
        expected[row] = _grow(
            (candidates[row], first[row], following[row]),
            (places[0, row], places[1, row], places[2, row]),
            eos,
            (tokens[row], parents[row], depths[row], ancestors[row], gains[row]),
        )


@compiled
def grow_all(lattice: HostLattice, places: Ints, nodes: int, eos: int, pad: int) -> Trees:
    """Return every row's tree; see :func:`_grow`."""
    rows = len(lattice[0])
    tokens, parents = np.full((rows, nodes), pad), np.zeros((rows, nodes), np.int64)
    depths = np.zeros((rows, nodes + 1), np.int64)
    ancestors = np.zeros((rows, nodes + 1, nodes + 1), np.bool_)
    gains = np.zeros((rows, nodes + 1))
    trees = tokens, parents, depths, ancestors, gains, np.zeros(rows)
    grow_some(lattice, places, np.arange(rows), eos, pad, trees)
    return trees


@compiled
def advance(candidates: Ints, places: Ints, gone: Ints) -> bool:
    """Move ``places`` on; see :meth:`LatticeTrees.advance`."""
    rows, _, width = candidates.shape
    left = False
    for row in range(rows):
        at, slots = places[0, row] + gone[0, row], places[2, row]
        places[0, row] = slots
        if at < slots:
            for cell in range(width):
                if candidates[row, at, cell] == gone[1, row]:
                    places[0, row], places[1, row] = at + 1, cell
                    left |= at + 1 < slots
    return left
