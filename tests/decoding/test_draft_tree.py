"""A tree holds the most probable continuations, and one way through it is followed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_plugins.decoding.draft_tree import DraftTree, grow_tree
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


def ways_of(lattice: Lattice, row: int) -> dict[Way, float]:
    """All ways that leave the greedy one at most once, with their log-probabilities."""
    candidates, slots = lattice.candidates[row].tolist(), lattice.candidates.size(1)
    width = len(candidates[0])
    first = lattice.first[row].log_softmax(-1).tolist()
    steps = lattice.following[row].log_softmax(-1).tolist()
    found: dict[Way, float] = {}

    def best(slot: int, place: int) -> int:
        return max(range(width), key=lambda to: steps[slot][place][to])

    def walk(way: Way, place: int, score: float, left: bool) -> None:
        slot = len(way) - 1
        found[way] = score
        if way[-1] == EOS or slot + 1 == slots:
            return
        for to in range(width):
            greedy = to == best(slot, place)
            if greedy or not left:
                token = candidates[slot + 1][to]
                walk((*way, token), to, score + steps[slot][place][to], left or not greedy)

    for place in range(width):
        walk((candidates[0][place],), place, first[place], place != 0)
    return found


def ways_in(tokens: torch.Tensor, tree: DraftTree, row: int) -> list[Way]:
    """The way to each node, by its parents."""
    parents = tree.parents[row].tolist()

    def way(node: int) -> Way:
        return (*way(parents[node - 1]), tokens[row, node - 1].item()) if node else ()

    return [way(node) for node in range(1, len(parents) + 1)]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 3),
    slots=st.integers(1, 7),
    width=st.integers(1, 4),
    nodes=st.integers(1, 30),
    seed=st.integers(0, 1000),
)
def test_the_most_probable_ways(rows: int, slots: int, width: int, nodes: int, seed: int) -> None:
    lattice = make_lattice(rows, slots, width, seed)
    tokens, tree = grow_tree(lattice, nodes, EOS, PAD)
    assert tokens.shape == (rows, nodes)
    for row in range(rows):
        known = ways_of(lattice, row)
        count = min(nodes, len(known))
        ways = ways_in(tokens, tree, row)
        found = ways[:count]
        assert all(parent <= node for node, parent in enumerate(tree.parents[row, :count].tolist()))
        assert len(set(found)) == count
        scores = [known[way] for way in found]
        # Of nearly equal ways the shorter one is taken.
        slack = 1e-4 * slots + 1e-4
        expected = sorted(known.values(), reverse=True)[:count]
        assert scores == pytest.approx(expected, abs=slack)
        assert tree.depths[row, 1 : count + 1].tolist() == [len(way) for way in found]
        for node, way in enumerate(found, start=1):
            before = tree.ancestors[row, node].nonzero()[:, 0].tolist()
            assert before[0] == 0
            assert tuple(tokens[row, other - 1].item() for other in before[1:]) == way
        assert tokens[row, count:].tolist() == [PAD] * (nodes - count)


def test_the_greedy_way_of_a_sure_drafter() -> None:
    lattice = make_lattice(1, 6, 3, seed=4, ends=0.0)
    sure = Lattice(lattice.candidates, 50 * lattice.first, 50 * lattice.following)
    tokens, tree = grow_tree(sure, 6, EOS, PAD)
    assert tokens.tolist() == sure.tokens(sure.greedy()).tolist()
    assert tree.parents.tolist() == [[0, 1, 2, 3, 4, 5]]


def test_equally_probable_tokens_come_in_their_order() -> None:
    """Where the drafter is so sure that probabilities are 1 in float32."""
    lattice = make_lattice(1, 6, 3, seed=4, ends=0.0)
    sure = Lattice(lattice.candidates, 1e4 * lattice.first, 1e4 * lattice.following)
    tokens, tree = grow_tree(sure, 4, EOS, PAD)
    assert tokens.tolist() == sure.tokens(sure.greedy())[:, :4].tolist()
    assert tree.depths.tolist() == [[0, 1, 2, 3, 4]]


def tree_of(parents: list[int]) -> DraftTree:
    """One row; node 0 is the root, of which ``parents`` says nothing."""
    ancestors = torch.eye(len(parents) + 1).bool()
    for node, parent in enumerate(parents, start=1):
        ancestors[node] |= ancestors[parent]
    depths = ancestors.sum(-1) - 1
    return DraftTree(int(depths.max()), depths[None], ancestors[None], torch.tensor([parents]))


@pytest.mark.parametrize(
    ("good", "limit", "way"),
    [
        ([0, 0, 0, 0, 0, 0], None, []),
        ([1, 0, 0, 0, 0, 0], None, [1]),
        # Its parent is not good.
        ([0, 0, 1, 1, 0, 0], None, []),
        ([1, 0, 1, 1, 0, 0], None, [1, 3, 4]),
        # Two are good: the longer way, and of ways as long the first.
        ([1, 1, 1, 0, 1, 1], None, [2, 5, 6]),
        ([1, 1, 0, 0, 0, 0], None, [1]),
        ([1, 0, 1, 1, 0, 0], 3, [1, 3]),
        ([1, 0, 1, 1, 0, 0], 0, []),
    ],
)
def test_the_way_that_is_followed(good: list[int], limit: int | None, way: list[int]) -> None:
    tree = tree_of([0, 0, 1, 3, 2, 5])
    limits = None if limit is None else torch.tensor([limit])
    path = tree.follow(torch.tensor([good]).bool(), limits)
    assert path.accepted.tolist() == [len(way)]
    assert path.nodes.shape == (1, 4)
    assert path.nodes[0, : len(way) + 1].tolist() == [0, *way]


def test_a_node_without_its_parent_is_never_reached() -> None:
    tree = tree_of([0, 1, 2])
    tree.ancestors[0, 3, 2] = False
    tree.ancestors[0, 3, 1] = False
    path = tree.follow(torch.ones(1, 3).bool())
    assert path.nodes[0, :3].tolist() == [0, 1, 2]
    assert path.accepted.tolist() == [2]


def test_rows_are_apart() -> None:
    lattice = make_lattice(3, 5, 3, seed=1)
    tokens, tree = grow_tree(lattice, 8, EOS, PAD)
    parts: Any = zip(lattice.candidates, lattice.first, lattice.following)
    for row, part in enumerate(parts):
        alone, own = grow_tree(Lattice(*(x[None] for x in part)), 8, EOS, PAD)
        assert torch.equal(alone[0], tokens[row])
        assert torch.equal(own.ancestors[0], tree.ancestors[row])
        assert torch.equal(own.parents[0], tree.parents[row])
