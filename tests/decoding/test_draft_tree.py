"""One way through a tree is followed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_plugins.decoding.draft_tree import DraftTree, _follow


def tree_of(parents: list[int]) -> DraftTree:
    """One row; node 0 is the root, of which ``parents`` says nothing."""
    ancestors = torch.eye(len(parents) + 1).bool()
    for node, parent in enumerate(parents, start=1):
        ancestors[node] |= ancestors[parent]
    depths, links = ancestors.sum(-1) - 1, torch.tensor([parents])
    return DraftTree(depths[None], ancestors[None], links, links.numpy(), [0.0])


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
    assert path.nodes.tolist() == [[0, *way]]


def test_rows_are_followed_apart() -> None:
    trees = [tree_of([0, 0, 1, 3, 2, 5]), tree_of([0, 1, 2, 3, 4, 5])]
    parts = zip(*((t.depths, t.ancestors, t.parents, t.parents) for t in trees))
    depths, ancestors, parents, _ = (torch.cat(part) for part in parts)
    both = DraftTree(depths, ancestors, parents, parents.numpy(), [0.0, 0.0])
    good = torch.tensor([[0, 1, 0, 0, 1, 0], [1, 1, 1, 1, 0, 1]]).bool()
    path = both.follow(good)
    assert path.accepted.tolist() == [2, 4]
    assert path.nodes.tolist()[1] == [0, 1, 2, 3, 4]
    assert path.nodes[0, :3].tolist() == [0, 2, 5]


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_compiled_and_not(data: st.DataObject) -> None:
    rows, nodes = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 8))
    links = [[data.draw(st.integers(0, node)) for node in range(nodes)] for _ in range(rows)]
    good = [[data.draw(st.booleans()) for _ in range(nodes)] for _ in range(rows)]
    arrays = np.array(links), np.array(good)
    found, plain = _follow(*arrays), _follow.py_func(*arrays)
    assert all(np.array_equal(a, b) for a, b in zip(found, plain))
