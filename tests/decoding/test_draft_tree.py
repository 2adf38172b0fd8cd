"""One way through a tree is followed."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_plugins.decoding import draft_tree
from specdec_plugins.decoding.draft_tree import DraftTree, _follow


def tree_of(parents: list[int]) -> DraftTree:
    """One row; node 0 is the root, of which ``parents`` says nothing."""
    ancestors = torch.eye(len(parents) + 1).bool()
    for node, parent in enumerate(parents, start=1):
        ancestors[node] |= ancestors[parent]
    depths, links = ancestors.sum(-1) - 1, torch.tensor([parents])
    tokens = 10 + np.arange(len(parents))[None]
    return DraftTree(depths[None], ancestors[None], links, links.numpy(), tokens, [0.0])


EOS = 2
BEST = torch.arange(50, 57)[None]
"""The verifier's own tokens after the root and six nodes."""


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
    path = tree.follow(torch.tensor([good]).bool(), BEST, EOS, limits)
    own = 50 + ([0, *way][-1])
    assert path.nodes.tolist() == [[0, *way]]
    assert path.tokens.tolist() == [[9 + node for node in way] + [own]]
    assert path.counts.tolist() == [[len(way) + 1], [len(way)], [0]]
    assert path.last == [own]
    assert path.straight == (way in ([], [1]))


def test_the_verifiers_own_token_is_preferred() -> None:
    """Though another that is good goes on longer; and wherever the way has got to."""
    tree = tree_of([0, 0, 1, 3, 2, 5, 2])
    good = torch.tensor([[1, 1, 1, 0, 1, 1, 1]]).bool()
    best = torch.arange(50, 58)[None]
    assert tree.follow(good, best, EOS).nodes.tolist() == [[0, 2, 5, 6]]
    best[0, 0] = 10
    path = tree.follow(good, best, EOS)
    assert path.nodes.tolist() == [[0, 1, 3]]
    assert path.tokens.tolist() == [[10, 12, 53]]
    best[0, 0], best[0, 2] = 50, 16
    assert tree.follow(good, best, EOS).tokens.tolist() == [[11, 16, 57]]


def test_where_a_sentence_ends() -> None:
    tree = tree_of([0, 1, 2, 0, 0, 0])
    good = torch.tensor([[1, 1, 0, 0, 0, 0]]).bool()
    tree.host_tokens[0, 1] = EOS
    path = tree.follow(good, BEST, EOS)
    # In the draft: nothing of the verifier's comes after it.
    assert path.counts.tolist() == [[2], [2], [1]]
    assert path.tokens[0, :2].tolist() == [10, EOS]
    assert path.last == [EOS]
    tree.host_tokens[0, 1] = 11
    own = BEST.masked_fill(BEST == 52, EOS)
    # With the verifier's own token.
    path = tree.follow(good, own, EOS)
    assert path.counts.tolist() == [[3], [2], [1]]
    assert path.tokens.tolist() == [[10, 11, EOS]]
    assert path.last == [EOS]


def test_rows_are_followed_apart() -> None:
    trees = [tree_of([0, 0, 1, 3, 2, 5]), tree_of([0, 1, 2, 3, 4, 5])]
    depths, ancestors, parents = (
        torch.cat([getattr(tree, name) for tree in trees])
        for name in ("depths", "ancestors", "parents")
    )
    tokens = np.concatenate([tree.host_tokens + 10 * row for row, tree in enumerate(trees)])
    both = DraftTree(depths, ancestors, parents, parents.numpy(), tokens, [0.0, 0.0])
    good = torch.tensor([[0, 1, 0, 0, 1, 0], [1, 1, 1, 1, 0, 1]]).bool()
    path = both.follow(good, torch.cat([BEST, BEST + 10]), EOS)
    assert path.counts.tolist() == [[3, 5], [2, 4], [0, 0]]
    assert path.nodes.tolist()[1] == [0, 1, 2, 3, 4]
    assert path.nodes[0, :3].tolist() == [0, 2, 5]
    assert path.tokens.tolist()[1] == [20, 21, 22, 23, 64]
    assert path.tokens[0, :3].tolist() == [11, 14, 55]
    assert not path.straight
    good[0] = torch.tensor([1, 0, 0, 0, 0, 0])
    assert both.follow(good, torch.cat([BEST, BEST + 10]), EOS).straight


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_compiled_and_not(data: st.DataObject) -> None:
    rows, nodes = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 8))

    def drawn(kind: st.SearchStrategy[int], count: int = nodes) -> np.ndarray:
        return np.array([[data.draw(kind) for _ in range(count)] for _ in range(rows)])

    parents = np.array([[data.draw(st.integers(0, n)) for n in range(nodes)] for _ in range(rows)])
    vocabulary = st.integers(EOS, 4)
    arrays = parents, drawn(vocabulary), drawn(st.booleans()), drawn(vocabulary, nodes + 1)
    room = drawn(st.integers(0, nodes), 1)[:, 0]
    found = _follow(*arrays, EOS, room)
    with mock.patch.object(draft_tree, "_child", draft_tree._child.py_func):
        plain = _follow.py_func(*arrays, EOS, room)
    assert all(np.array_equal(a, b) for a, b in zip(found, plain))
