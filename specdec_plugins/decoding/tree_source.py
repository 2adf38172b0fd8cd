"""Where draft trees come from: a lattice on the host, grown best first. No fairseq in here."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.decoding.compiled import compiled
from specdec_plugins.decoding.draft_tree import DraftTree
from specdec_plugins.models.lattice import Lattice


class TreeSource:
    """A lattice, and how far each row has come in it.

    A tree has some twenty tokens, each found by comparing a few numbers: as tensor code that is a
    hundred small calls, compiled it is ten microseconds. So it is done on the host, to which a GPU
    copies each lattice once.

    What a draft holds for the slots after a rejected one was drafted without knowing the tokens
    before it, and a lattice says how well it follows the verifier's token: unless that is none of
    its slot's candidates, a tree can be grown after it from what is left.
    """

    def __init__(self, lattice: Lattice, eos: int, pad: int, slots: Tensor | None = None) -> None:
        """``slots`` ``(rows,)``: how many of the lattice's slots are each row's; None for all."""
        self._device = lattice.candidates.device
        self._lattice = tuple(
            tensor.contiguous().cpu().numpy()
            for tensor in (lattice.candidates, lattice.first, lattice.following)
        )
        self._eos, self._pad = eos, pad
        # Of each row: the first slot to fill; which candidate of the slot before it comes before;
        # and how many slots there are: if none is left, the first one to fill.
        self._places = np.zeros((3, len(lattice.candidates)), np.int64)
        self._places[2] = lattice.candidates.size(1) if slots is None else slots.cpu().numpy()
        # The trees of all rows, once they are grown.
        self._trees: Any = None

    def promises(self, nodes: int) -> list[float]:
        """How many tokens of each row's tree of ``nodes`` would be accepted if each were accepted
        as often as the drafter thinks; 0 where nothing is left."""
        self._trees = _grow_all(self._lattice, self._places, nodes, self._eos, self._pad)
        promised: list[float] = self._trees[-1].tolist()
        return promised

    def replace(self, rows: list[int], drafted: TreeSource) -> None:
        """Take over a new draft of some rows; the trees of the others stay as they are."""
        parts = zip(self._lattice, drafted._lattice)
        self._lattice = tuple(_replaced(own, rows, new) for own, new in parts)
        self._places[:, rows] = drafted._places
        if self._trees is not None:
            places = self._places, np.array(rows)
            _grow_some(self._lattice, *places, self._eos, self._pad, self._trees)

    def grow(self, nodes: int) -> tuple[Tensor, DraftTree]:
        """The most probable continuations of every row, ``nodes`` tokens in all, by probability.

        Of all ways through what is left of the lattice, each beginning of one is a token's, with
        the probability of the whole way to it, to the drafter. The most probable ones make a tree,
        since no token is more probable than the one before it: broad where the drafter is unsure,
        deep where it is sure. (Best-first search, as in OPT-Tree, Wang et al., TACL 2025, and in
        the dynamic trees of EAGLE-2, Li et al., EMNLP 2024, but without a pass of the drafter for
        each level: a lattice has all of them.)

        Nothing continues an EOS. Where there are fewer such tokens than ``nodes``, the rest is
        ``pad``, which no verifier accepts.

        Returns:
            ``(rows, nodes)`` tokens, and how they hang together.
        """
        if self._trees is None:
            self.promises(nodes)
        tokens, parents, depths, ancestors, promised = self._trees
        tree = DraftTree(
            depths=torch.from_numpy(depths).to(self._device),
            ancestors=torch.from_numpy(ancestors).to(self._device),
            parents=torch.from_numpy(parents).to(self._device),
            host_parents=parents,
            host_tokens=tokens,
            promised=promised.tolist(),
        )
        return torch.from_numpy(tokens).to(self._device), tree

    def advance(self, accepted: list[int], last: list[int]) -> bool:
        """Every row has gone on: by ``accepted`` tokens of its tree, and one of the verifier's.

        Returns:
            whether anything is left of any row.
        """
        self._trees = None
        gone = np.array((accepted, last))
        return bool(_advance(self._lattice[0], self._places, gone))

    def keep(self, kept: list[int]) -> None:
        """Drop all rows but ``kept``."""
        self._trees = None
        self._lattice = tuple(part[kept] for part in self._lattice)
        self._places = np.ascontiguousarray(self._places[:, kept])


def _replaced(old: Any, rows: list[int], new: Any) -> Any:
    """A part of a lattice with some rows replaced, which may have fewer slots or more."""
    missing = new.shape[1] - old.shape[1]
    if missing > 0:
        old = np.pad(old, [(0, 0), (0, missing)] + [(0, 0)] * (old.ndim - 2))
    old[rows, : new.shape[1]] = new
    return old


def prepare_trees() -> None:
    """Compile what trees take, or load what was compiled: seconds, or tenths of one.

    Otherwise the first batch that is decoded would pay for it.
    """
    scores = torch.zeros(1, 2, 1, 1)
    source = TreeSource(Lattice(torch.zeros(1, 2, 1).long(), scores[:, 0, 0], scores[:, 1:]), 2, 1)
    _, tree = source.grow(1)
    source.replace([0], source)
    path = tree.follow(torch.zeros(1, 1).bool(), torch.zeros(1, 2).long(), 2)
    source.advance(path.host_counts[1], path.last)


@compiled
def _most_probable(chances: Any) -> Any:
    """The place of the largest, of equals the first; -1 if all are minus infinity."""
    best, found = -np.inf, -1
    for place, chance in enumerate(chances):
        if chance > best:
            best, found = chance, place
    return found


@compiled
def _next_best(scores: Any, before: Any) -> Any:
    """The candidate that comes after ``before`` by score, of equals by place; -1 if there is none.

    After -1 comes the best of all.
    """
    found = -1
    for place, score in enumerate(scores):
        later = before < 0 or score < scores[before] or (score == scores[before] and place > before)
        if later and (found < 0 or score > scores[found]):
            found = place
    return found


@compiled
def _log_sum_exp(scores: Any, largest: Any) -> Any:
    total = 0.0
    for score in scores:
        total += math.exp(score - largest)
    return largest + math.log(total)


@compiled
def _grow(lattice: Any, place: Any, eos: Any, tree: Any) -> Any:
    """Fill in one row's tree; see :meth:`TreeSource.grow`. Returns what it promises.

    Of every node that is taken, the best child that is not is known: of all these, the most
    probable is taken next.

    Args:
        lattice: a row's candidates, first and following scores; see :class:`Lattice`.
        place: the first slot to fill, the candidate of the slot before it that the tree follows,
            and the slot to stop at.
        tree: tokens, full of pad, and parents, depths and ancestors as of a :class:`DraftTree`, all
            zeros.
    """
    candidates, first, following = lattice
    tokens, parents, depths, ancestors = tree
    count, (slot, cell, slots) = len(depths), place
    # Of each node: its candidate, its log-probability, and what makes the scores after it
    # log-probabilities; then its best child that is not taken, and that one's log-probability.
    own, gain, shift = np.zeros(count, np.int64), np.zeros(count), np.zeros(count)
    child, chance = np.zeros(count, np.int64), np.full(count, -np.inf)
    own[0] = cell
    promised = 0.0
    for node in range(count):
        parent = -1
        if node > 0:
            parent = _most_probable(chance[:node])
            if parent < 0:
                # Nothing is left: what fills up follows the root, and is not accepted.
                depths[node] = 1
                ancestors[node, 0] = ancestors[node, node] = True
                continue
            own[node], gain[node] = child[parent], chance[parent]
            depths[node], parents[node - 1] = depths[parent] + 1, parent
            ancestors[node] = ancestors[parent]
            tokens[node - 1] = candidates[slot + depths[parent], own[node]]
            promised += math.exp(gain[node])
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
    return promised


@compiled
def _grow_some(lattice: Any, places: Any, rows: Any, eos: Any, pad: Any, trees: Any) -> Any:
    """Fill in the trees of some rows, whatever is there, and what they promise."""
    candidates, first, following = lattice
    tokens, parents, depths, ancestors, promised = trees
    for row in rows:
        tokens[row], parents[row], depths[row], ancestors[row] = pad, 0, 0, False
        promised[row] = _grow(
            (candidates[row], first[row], following[row]),
            (places[0, row], places[1, row], places[2, row]),
            eos,
            (tokens[row], parents[row], depths[row], ancestors[row]),
        )


@compiled
def _grow_all(lattice: Any, places: Any, nodes: Any, eos: Any, pad: Any) -> Any:
    """Every row's tree: see :func:`_grow`."""
    rows = len(lattice[0])
    tokens, parents = np.full((rows, nodes), pad), np.zeros((rows, nodes), np.int64)
    depths = np.zeros((rows, nodes + 1), np.int64)
    ancestors = np.zeros((rows, nodes + 1, nodes + 1), np.bool_)
    trees = tokens, parents, depths, ancestors, np.zeros(rows)
    _grow_some(lattice, places, np.arange(rows), eos, pad, trees)
    return trees


@compiled
def _advance(candidates: Any, places: Any, gone: Any) -> Any:
    """Move ``places`` on; see :meth:`TreeSource.advance`."""
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
