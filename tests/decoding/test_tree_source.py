"""A tree holds the most probable continuations of what is left of a lattice."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_plugins.decoding import draft_tree, tree_source
from specdec_plugins.decoding.draft_tree import DraftTree
from specdec_plugins.decoding.tree_source import TreeSource, prepare_trees
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


def grow_tree(lattice: Lattice, nodes: int) -> tuple[torch.Tensor, DraftTree]:
    return TreeSource(lattice, EOS, PAD).grow(nodes)


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


def ways_in(tokens: torch.Tensor, tree: DraftTree, row: int) -> list[Way]:
    """The way to each node, by its parents."""
    parents = tree.parents[row].tolist()

    def way(node: int) -> Way:
        return (*way(parents[node - 1]), tokens[row, node - 1].item()) if node else ()

    return [way(node) for node in range(1, len(parents) + 1)]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 3),
    slots=st.integers(1, 5),
    width=st.integers(1, 4),
    nodes=st.integers(1, 30),
    seed=st.integers(0, 1000),
)
def test_the_most_probable_ways(rows: int, slots: int, width: int, nodes: int, seed: int) -> None:
    lattice = make_lattice(rows, slots, width, seed)
    tokens, tree = grow_tree(lattice, nodes)
    assert tokens.shape == (rows, nodes)
    for row in range(rows):
        known = ways_of(lattice, row)
        count = min(nodes, len(known))
        ways = ways_in(tokens, tree, row)
        found = ways[:count]
        assert all(parent <= node for node, parent in enumerate(tree.parents[row, :count].tolist()))
        assert len(set(found)) == count
        scores = [known[way] for way in found]
        expected = sorted(known.values(), reverse=True)[:count]
        assert scores == pytest.approx(expected, abs=1e-5)
        assert tree.promised[row] == pytest.approx(sum(np.exp(expected)), abs=1e-5)
        assert tree.depths[row, 1 : count + 1].tolist() == [len(way) for way in found]
        for node, way in enumerate(found, start=1):
            before = tree.ancestors[row, node].nonzero()[:, 0].tolist()
            assert before[0] == 0
            assert tuple(tokens[row, other - 1].item() for other in before[1:]) == way
        assert tokens[row, count:].tolist() == [PAD] * (nodes - count)


def test_the_greedy_way_of_a_sure_drafter() -> None:
    lattice = make_lattice(1, 6, 3, seed=4, ends=0.0)
    sure = Lattice(lattice.candidates, 50 * lattice.first, 50 * lattice.following)
    tokens, tree = grow_tree(sure, 6)
    assert tokens.tolist() == sure.tokens(sure.greedy()).tolist()
    assert tree.parents.tolist() == [[0, 1, 2, 3, 4, 5]]


def test_equally_probable_tokens_come_in_their_order() -> None:
    """Where the drafter is so sure that probabilities are 1 in float32."""
    lattice = make_lattice(1, 6, 3, seed=4, ends=0.0)
    sure = Lattice(lattice.candidates, 1e4 * lattice.first, 1e4 * lattice.following)
    tokens, tree = grow_tree(sure, 4)
    assert tokens.tolist() == sure.tokens(sure.greedy())[:, :4].tolist()
    assert tree.depths.tolist() == [[0, 1, 2, 3, 4]]


def part_of(lattice: Lattice, row: int) -> Lattice:
    parts = lattice.candidates[row], lattice.first[row], lattice.following[row]
    return Lattice(*(part[None] for part in parts))


def same_trees(
    found: tuple[torch.Tensor, DraftTree], expected: tuple[torch.Tensor, DraftTree], row: int
) -> None:
    """A row of trees, and a tree of one row."""
    assert torch.equal(found[0][row], expected[0][0])
    for name in ("depths", "ancestors", "parents"):
        assert torch.equal(getattr(found[1], name)[row], getattr(expected[1], name)[0])
    assert np.array_equal(found[1].host_parents[row], expected[1].host_parents[0])
    assert found[1].promised[row] == pytest.approx(expected[1].promised[0])


def test_rows_are_apart() -> None:
    lattice = make_lattice(3, 5, 3, seed=1)
    found = grow_tree(lattice, 8)
    for row in range(3):
        same_trees(found, grow_tree(part_of(lattice, row), 8), row)


def rest_of(lattice: Lattice, slot: int, cell: int) -> Lattice:
    """What comes after a candidate."""
    return Lattice(
        lattice.candidates[:, slot + 1 :],
        lattice.following[:, slot, cell],
        lattice.following[:, slot + 1 :],
    )


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000), gone=st.lists(st.integers(0, 3), min_size=3, max_size=3))
def test_what_is_left_after_the_verifiers_token(seed: int, gone: list[int]) -> None:
    """Every row has gone on as far as it has, and then again by one token."""
    slots = 6
    lattice = make_lattice(3, slots, 4, seed, ends=0.0)
    source = TreeSource(lattice, EOS, PAD)
    cells = [(seed + row) % 4 for row in range(3)]
    last = [int(lattice.candidates[row, n, c]) for row, (n, c) in enumerate(zip(gone, cells))]
    assert source.advance(gone, last)
    found = source.grow(7)
    rests = [rest_of(part_of(lattice, row), gone[row], cells[row]) for row in range(3)]
    for row, rest in enumerate(rests):
        same_trees(found, grow_tree(rest, 7), row)
    last = [int(rest.candidates[0, 0, 1]) for rest in rests]
    assert source.advance([0, 0, 0], last)
    source.keep([0, 2])
    found = source.grow(7)
    for place, row in enumerate([0, 2]):
        same_trees(found, grow_tree(rest_of(rests[row], 0, 1), 7), place)


def test_a_row_of_which_nothing_is_left() -> None:
    lattice = make_lattice(3, 4, 3, seed=2, ends=0.0)
    source = TreeSource(lattice, EOS, PAD)
    unknown = 3
    # A token that is no candidate; the last slot's; and one of which something is left.
    last = [unknown, int(lattice.candidates[1, 3, 0]), int(lattice.candidates[2, 1, 1])]
    assert source.advance([1, 3, 1], last)
    tokens, tree = source.grow(5)
    assert tokens[:2].tolist() == [[PAD] * 5] * 2
    assert tree.promised[:2] == [0.0, 0.0]
    same_trees((tokens, tree), grow_tree(rest_of(part_of(lattice, 2), 1, 1), 5), 2)
    # A whole tree was accepted, and the verifier's token comes after the last slot.
    assert not source.advance([0, 0, 2], [unknown] * 3)
    assert source.grow(2)[0].tolist() == [[PAD] * 2] * 3


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    slots=st.integers(1, 6),
    replaced=st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True),
    grown=st.booleans(),
)
def test_some_rows_are_drafted_anew(
    seed: int, slots: int, replaced: list[int], grown: bool
) -> None:
    """With more slots than the others have, or fewer: the others' trees stay what they are."""
    lattice, cells = make_lattice(3, 4, 3, seed), [1, 0, 2]
    source = TreeSource(lattice, EOS, PAD)
    assert source.advance([0] * 3, [int(lattice.candidates[r, 0, c]) for r, c in enumerate(cells)])
    anew = make_lattice(3, slots, 3, seed + 1)
    if grown:
        source.promises(7)
    chosen = Lattice(*(part[replaced] for part in (anew.candidates, anew.first, anew.following)))
    source.replace(replaced, TreeSource(chosen, EOS, PAD))
    expected = [
        part_of(anew, row) if row in replaced else rest_of(part_of(lattice, row), 0, cells[row])
        for row in range(3)
    ]
    found = source.grow(7)
    for row in range(3):
        same_trees(found, grow_tree(expected[row], 7), row)


def test_rows_of_which_some_slots_are_for_others() -> None:
    lattice = make_lattice(3, 5, 3, seed=3)
    source = TreeSource(lattice, EOS, PAD, torch.tensor([5, 2, 3]))
    found = source.grow(9)
    for row, slots in enumerate([5, 2, 3]):
        own = part_of(lattice, row)
        own = Lattice(own.candidates[:, :slots], own.first, own.following[:, : slots - 1])
        same_trees(found, grow_tree(own, 9), row)


@pytest.mark.parametrize("seed", range(3))
def test_compiled_and_not(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    lattice = make_lattice(2, 4, 3, seed, ends=0.5)
    trees, left = [], []
    for plain in (False, True):
        source = TreeSource(lattice, EOS, PAD)
        if plain:
            names = (
                "_most_probable",
                "_next_best",
                "_log_sum_exp",
                "_grow",
                "_grow_some",
                "_grow_all",
            )
            for name in names:
                monkeypatch.setattr(tree_source, name, getattr(tree_source, name).py_func)
            monkeypatch.setattr(tree_source, "_advance", tree_source._advance.py_func)
        left.append(source.advance([0, 1], [int(lattice.candidates[0, 0, 0]), 0]))
        trees.append(source.grow(9))
    assert left[0] == left[1]
    assert torch.equal(trees[0][0], trees[1][0])
    for name in ("depths", "ancestors", "parents"):
        assert torch.equal(getattr(trees[0][1], name), getattr(trees[1][1], name))


def test_what_is_prepared_need_not_be_compiled_again() -> None:
    prepare_trees()
    functions = (
        tree_source._grow_all,
        tree_source._grow_some,
        tree_source._advance,
        draft_tree._follow,
    )
    before = [len(function.signatures) for function in functions]
    lattice = make_lattice(3, 4, 3, seed=1)
    expanded = lattice.following[:, :1].expand(-1, 3, -1, -1)
    with torch.inference_mode():
        source = TreeSource(Lattice(lattice.candidates, lattice.first, expanded), EOS, PAD)
        for rows in (3, 2):
            _, tree = source.grow(5)
            good, best = torch.ones(rows, 5).bool(), torch.zeros(rows, 6).long()
            path = tree.follow(good, best, EOS, torch.tensor([3] * rows))
            source.advance(path.host_counts[1], path.last)
            source.promises(5)
            source.replace([1], TreeSource(part_of(lattice, 1), EOS, PAD))
            if rows == 3:
                source.keep([0, 2])
    assert [len(function.signatures) for function in functions] == before
