"""The way by tensor code is that of the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.decoding.acceptance.tensor_walk import (
    AcceptedPath,
    Links,
    chain_links,
    walk_by_tensors,
)
from specdec_plugins.decoding.acceptance.tree_walk import walk, walk_along

EOS = 2
CPU = torch.device("cpu")


def assert_same(way: AcceptedPath, accepted: Any) -> None:
    committed, count = accepted.committed, accepted.accepted
    assert way.committed[:, 0].tolist() == committed
    assert way.accepted[:, 0].tolist() == count
    for row, n in enumerate(committed):
        assert way.tokens[row, :n].tolist() == accepted.tokens[row, :n].tolist()
        assert way.sources[row, :n].tolist() == accepted.sources[row, :n].tolist()


@st.composite
def trees(draw: Any, rows: int = 2) -> Any:
    """Parents and tokens ``(rows, nodes)``: no two of the same after the same node, none after
    EOS."""
    nodes = draw(st.integers(1, 7))
    parents, tokens = np.zeros((2, rows, nodes), np.int64)
    for row in range(rows):
        for node in range(1, nodes + 1):
            ends = [0, *(tokens[row, : node - 1] == EOS)]
            parent = draw(st.sampled_from([n for n in range(node) if not ends[n]]))
            taken = set(tokens[row, : node - 1][parents[row, : node - 1] == parent])
            parents[row, node - 1] = parent
            free = [token for token in range(2, 12) if token not in taken]
            tokens[row, node - 1] = draw(st.sampled_from(free))
    return parents, tokens


def links_of(parents: Any) -> Links:
    rows, nodes = parents.shape
    depths, ancestors = (
        np.zeros((rows, nodes + 1), np.int64),
        np.tile(np.eye(nodes + 1), (rows, 1, 1)),
    )
    for row in range(rows):
        for node, parent in enumerate(parents[row], 1):
            depths[row, node] = depths[row, parent] + 1
            ancestors[row, node] += ancestors[row, parent]
    given = torch.from_numpy(parents), torch.from_numpy(depths), torch.from_numpy(ancestors > 0)
    return Links(*given, deepest=nodes)


@given(tree=trees(), seed=st.integers(0, 999), several=st.booleans())
def test_trees(tree: Any, seed: int, several: bool) -> None:
    parents, tokens = tree
    torch.manual_seed(seed)
    drafted = torch.from_numpy(tokens)
    own = torch.randint(2, 12, (2, tokens.shape[1] + 1))
    good = drafted == own.gather(1, torch.from_numpy(parents))
    if several:
        good |= torch.rand(good.shape) < 0.6
    expected = walk((parents, tokens), good, own, EOS, [tokens.shape[1]] * 2, None)
    assert_same(walk_by_tensors(links_of(parents), drafted, (good, own), EOS, several), expected)


@given(
    slots=st.integers(0, 5),
    seed=st.integers(0, 999),
    kind=st.sampled_from(["own", "several", "drawn"]),
)
def test_chains(slots: int, seed: int, kind: str) -> None:
    torch.manual_seed(seed)
    drafted = torch.randint(2, 6, (3, slots))
    own = torch.randint(2, 6, (3, slots + 1))
    good = drafted == own[:, :-1]
    if kind != "own":
        good |= torch.rand(good.shape) < 0.6
    # Nothing comes after EOS.
    good[:, 1:] &= drafted[:, :-1] != EOS
    own = own[:, :1] if kind == "drawn" else own
    expected = walk_along(drafted, good, own, EOS, torch.full((3,), slots), None)
    links = chain_links(slots, CPU)
    assert_same(walk_by_tensors(links, drafted, (good, own), EOS, kind == "several"), expected)
