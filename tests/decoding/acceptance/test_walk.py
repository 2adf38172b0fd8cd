"""One path through a tree is followed, by tensor code as on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from conftest import counts_of, examples
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.decoding.acceptance import Accepted
from specdec_plugins.decoding.acceptance import verification as walks

EOS = 2


def plain_way(parents: list[int], tokens: list[int], good: list[int], own: list[int]) -> list[int]:
    """The way from the root, node by node."""

    def children(node: int) -> list[int]:
        after = zip(parents, good)
        return [n for n, (parent, fine) in enumerate(after, start=1) if parent == node and fine]

    def beyond(node: int) -> int:
        return max((1 + beyond(child) for child in children(node)), default=0)

    way = [0]
    while here := children(way[-1]):
        same = [child for child in here if tokens[child - 1] == own[way[-1]]]
        way.append(same[0] if same else max(here, key=beyond))
    return way


@examples(50)
@given(st.data())
def test_ways_are_those_of_a_plain_search(data: st.DataObject) -> None:
    """Of several rows of different lengths; nothing comes after EOS."""
    rows, nodes = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 8))

    def drawn(count: int, kind: st.SearchStrategy[int]) -> list[list[int]]:
        return [data.draw(st.lists(kind, min_size=count, max_size=count)) for _ in range(rows)]

    tokens, own = (drawn(n, st.integers(EOS, 4)) for n in (nodes, nodes + 1))
    good = drawn(nodes, st.integers(0, 1))
    lengths = [row[0] for row in drawn(1, st.integers(0, nodes))]
    parents = [
        [
            data.draw(st.sampled_from([0, *(m for m in range(1, n) if row[m - 1] != EOS)]))
            for n in range(1, nodes + 1)
        ]
        for row in tokens
    ]
    tree, judged = (np.array(parents), np.array(tokens)), torch.tensor(good).bool()
    found = walks.walk(*tree, judged, torch.tensor(own), EOS, lengths)
    ways = [
        plain_way(parents[row][:length], tokens[row], good[row], own[row])
        for row, length in enumerate(lengths)
    ]
    for row, way in enumerate(ways):
        said = [tokens[row][node - 1] for node in way[1:]]
        if EOS not in said:
            said.append(own[row][way[-1]])
        assert found.sources[row, : len(way)].tolist() == way
        assert found.tokens[row, : len(said)].tolist() == said
        expected = [len(said), len(way) - 1, lengths[row]]
        assert [values[row] for values in counts_of(found)] == expected


def assert_same(way: walks.AcceptedPath, accepted: Accepted) -> None:
    committed, count = accepted.committed, accepted.accepted
    assert way.committed[:, 0].tolist() == committed
    assert way.accepted[:, 0].tolist() == count
    for row, n in enumerate(committed):
        assert way.tokens[row, :n].tolist() == accepted.tokens[row, :n].tolist()
        assert way.sources[row, :n].tolist() == accepted.sources[row, :n].tolist()


@st.composite
def trees(draw: st.DrawFn, rows: int = 2) -> Any:
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


def links_of(parents: Any) -> walks.Links:
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
    return walks.Links(*given, deepest=nodes)


@given(tree=trees(), seed=st.integers(0, 999), several=st.booleans())
def test_trees(tree: Any, seed: int, several: bool) -> None:
    parents, tokens = tree
    torch.manual_seed(seed)
    drafted = torch.from_numpy(tokens)
    own = torch.randint(2, 12, (2, tokens.shape[1] + 1))
    good = drafted == own.gather(1, torch.from_numpy(parents))
    if several:
        good |= torch.rand(good.shape) < 0.6
    expected = walks.walk(parents, tokens, good, own, EOS, [tokens.shape[1]] * 2)
    assert_same(
        walks.walk_by_tensors(links_of(parents), drafted, good, own, EOS, several), expected
    )


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
    chain = np.arange(slots)[None], drafted.numpy()
    expected = walks.walk(*chain, good, own.expand(-1, slots + 1), EOS, [slots] * 3)
    links = walks.chain_links(slots, torch.device("cpu"))
    assert_same(walks.walk_by_tensors(links, drafted, good, own, EOS, kind == "several"), expected)
