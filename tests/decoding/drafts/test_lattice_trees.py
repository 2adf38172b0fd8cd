"""A tree holds the most probable continuations of what is left of a lattice."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.decoding.drafts import TreeDraft
from specdec_plugins.decoding.drafts.growth import HostLattice, advance, grow_all
from specdec_plugins.decoding.kernels import Ints
from specdec_plugins.models.lattice import Lattice

EOS, PAD = 2, 1
Way = tuple[int, ...]


def make_lattice(rows: int, slots: int, width: int, seed: int, ends: float = 0.1) -> Lattice:
    random = torch.Generator().manual_seed(seed)
    candidates = torch.stack(
        [
            torch.stack([torch.randperm(40, generator=random)[:width] + 4 for _ in range(slots)])
            for _ in range(rows)
        ]
    )
    end = torch.rand(rows, slots, generator=random) < ends
    place = torch.randint(width, (rows, slots), generator=random)
    candidates[end.nonzero()[:, 0], end.nonzero()[:, 1], place[end]] = EOS
    first = torch.randn(rows, width, generator=random).sort(descending=True).values
    following = 2 * torch.randn(rows, slots - 1, width, width, generator=random)
    return Lattice(candidates, first, following)


def on_host(lattice: Lattice) -> HostLattice:
    return lattice.candidates.numpy(), lattice.first.numpy(), lattice.following.numpy()


def whole(lattice: Lattice) -> Ints:
    """Where every row begins, and how far it goes."""
    rows, slots, _ = lattice.candidates.shape
    return np.array([[0] * rows, [0] * rows, [slots] * rows])


def grow(lattice: HostLattice, positions: Ints, nodes: int) -> TreeDraft:
    trees, rows = grow_all(lattice, positions, nodes, EOS, PAD), positions.shape[1]
    return TreeDraft.of(trees, [nodes] * rows, [True] * rows, torch.device("cpu"))


def grow_tree(lattice: Lattice, nodes: int) -> TreeDraft:
    return grow(on_host(lattice), whole(lattice), nodes)


def ways_of(lattice: Lattice, row: int) -> dict[Way, float]:
    """All ways, with their log-probabilities."""
    candidates, slots = lattice.candidates[row].tolist(), lattice.candidates.size(1)
    first = lattice.first[row].double().log_softmax(-1).tolist()
    steps = lattice.following[row].double().log_softmax(-1).tolist()
    found: dict[Way, float] = {}

    def walk(way: Way, place: int, score: float) -> None:
        slot = len(way) - 1
        found[way] = score
        if way[-1] == EOS or slot + 1 == slots:
            return
        for to, token in enumerate(candidates[slot + 1]):
            walk((*way, token), to, score + steps[slot][place][to])

    for place, token in enumerate(candidates[0]):
        walk((token,), place, first[place])
    return found


def ways_in(tree: TreeDraft, row: int) -> list[Way]:
    """The way to each node, by its parents."""
    parents = tree.links.after[row].tolist()

    def way(node: int) -> Way:
        return (*way(parents[node - 1]), tree.tokens[row, node - 1].item()) if node else ()

    return [way(node) for node in range(1, len(parents) + 1)]


@examples(60)
@given(
    rows=st.integers(1, 3),
    slots=st.integers(1, 5),
    width=st.integers(1, 4),
    nodes=st.integers(1, 30),
    seed=st.integers(0, 1000),
)
def test_the_most_probable_ways(rows: int, slots: int, width: int, nodes: int, seed: int) -> None:
    lattice = make_lattice(rows, slots, width, seed)
    tree = grow_tree(lattice, nodes)
    promised = grow_all(on_host(lattice), whole(lattice), nodes, EOS, PAD)[-1]
    tokens = tree.tokens
    assert tokens.shape == (rows, nodes)
    assert (tree.drafted, tree.called) == ([nodes] * rows, [True] * rows)
    for row in range(rows):
        known = ways_of(lattice, row)
        count = min(nodes, len(known))
        ways = ways_in(tree, row)
        found = ways[:count]
        assert all(
            parent <= node for node, parent in enumerate(tree.links.after[row, :count].tolist())
        )
        assert len(set(found)) == count
        scores = [known[way] for way in found]
        expected = sorted(known.values(), reverse=True)[:count]
        assert scores == pytest.approx(expected, abs=1e-5)
        assert promised[row] == pytest.approx(sum(np.exp(expected)), abs=1e-5)
        assert tree.links.depths[row, 1 : count + 1].tolist() == [len(way) for way in found]
        for node, way in enumerate(found, start=1):
            before = tree.links.ancestors[row, node].nonzero()[:, 0].tolist()
            assert before[0] == 0
            assert tuple(tokens[row, other - 1].item() for other in before[1:]) == way
        assert tokens[row, count:].tolist() == [PAD] * (nodes - count)
        parts = [known[way] - known.get(way[:-1], 0.0) for way in found]
        chances = [*np.exp(parts), *[0.0] * (nodes - count)]
        assert tree.chances()[row] == pytest.approx(chances, abs=1e-5)


def part_of(lattice: Lattice, row: int) -> Lattice:
    parts = lattice.candidates[row], lattice.first[row], lattice.following[row]
    return Lattice(*(part[None] for part in parts))


def same_trees(found: TreeDraft, expected: TreeDraft, row: int) -> None:
    """A row of trees, and a tree of one row."""
    for ours, own in zip((found.tokens, *found.links[:3]), (expected.tokens, *expected.links[:3])):
        assert torch.equal(ours[row], own[0])
    assert found.chances()[row] == pytest.approx(expected.chances()[0])


def rest_of(lattice: Lattice, slot: int, cell: int) -> Lattice:
    """What comes after a candidate."""
    return Lattice(
        lattice.candidates[:, slot + 1 :],
        lattice.following[:, slot, cell],
        lattice.following[:, slot + 1 :],
    )


@examples(40)
@given(seed=st.integers(0, 1000), gone=st.lists(st.integers(0, 3), min_size=3, max_size=3))
def test_what_is_left_after_the_verifiers_token(seed: int, gone: list[int]) -> None:
    """Every row has gone on as far as it has, and then again by one token."""
    lattice = make_lattice(3, 6, 4, seed, ends=0.0)
    host, positions = on_host(lattice), whole(lattice)
    cells = [(seed + row) % 4 for row in range(3)]
    last = [int(lattice.candidates[row, n, c]) for row, (n, c) in enumerate(zip(gone, cells))]
    assert advance(host[0], positions, np.array([gone, last]))
    found = grow(host, positions, 7)
    rests = [rest_of(part_of(lattice, row), gone[row], cells[row]) for row in range(3)]
    for row, rest in enumerate(rests):
        same_trees(found, grow_tree(rest, 7), row)
    last = [int(rest.candidates[0, 0, 1]) for rest in rests]
    assert advance(host[0], positions, np.array([[0] * 3, last]))
    found = grow(host, positions, 7)
    for row in range(3):
        same_trees(found, grow_tree(rest_of(rests[row], 0, 1), 7), row)
