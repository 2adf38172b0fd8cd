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
def _most_probable(chances: Floats) -> int:
    """Return the place of the largest, of equals the first; -1 if all are minus infinity."""
    best, found = -np.inf, -1
    for place, chance in enumerate(chances):
        if chance > best:
            best, found = chance, place
    return found


@compiled
def _next_best(scores: Scores, before: int) -> int:
    """Return the candidate that comes after ``before`` by score, of equals by place; -1 if there is
    none.

    After -1 comes the best of all.
    """
    found = -1
    for place, score in enumerate(scores):
        later = before < 0 or score < scores[before] or (score == scores[before] and place > before)
        if later and (found < 0 or score > scores[found]):
            found = place
    return found


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
    # Of each node: its candidate, and what makes the scores after it log-probabilities; then its
    # best child that is not taken, and that one's log-probability.
    own, shift = np.zeros(count, np.int64), np.zeros(count)
    child, chance = np.zeros(count, np.int64), np.full(count, -np.inf)
    own[0] = cell
    expected = 0.0
    for node in range(count):
        parent = -1
        if node > 0:
            parent = _most_probable(chance[:node])
            if parent < 0:
                # Nothing is left: what fills up follows the root, and is not accepted.
                depths[node], gain[node] = 1, -np.inf
                ancestors[node, 0] = ancestors[node, node] = True
                continue
            own[node], gain[node] = child[parent], chance[parent]
            depths[node], parents[node - 1] = depths[parent] + 1, parent
            ancestors[node] = ancestors[parent]
            tokens[node - 1] = candidates[slot + depths[parent], own[node]]
            expected += math.exp(gain[node])
        ancestors[node, node] = True
        for looking in (parent, node):
            if looking < 0:
                continue
            at = slot + depths[looking]
            chance[looking] = -np.inf
            if at >= slots or (looking > 0 and tokens[looking - 1] == eos):
                continue
            scores = first if at == 0 else following[at - 1, own[looking]]
            found = _next_best(scores, -1 if looking == node else own[node])
            if found >= 0:
                if looking == node:
                    shift[node] = gain[node] - _log_sum_exp(scores, scores[found])
                child[looking], chance[looking] = found, scores[found] + shift[looking]
    return expected


@compiled
def grow_some(
    lattice: HostLattice, places: Ints, rows: Ints, eos: int, pad: int, trees: Trees
) -> None:
    """Fill in the trees of some rows, whatever is there, and what is expected of each."""
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
    """Every row's tree: see :func:`_grow`."""
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
