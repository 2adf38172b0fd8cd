"""Sources made of sources: new, cut only where both have the same word, the same every time."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.data import recombination
from specdec_plugins.data.recombination import LONGEST, Text, recombine

OLD = [
    "a man in a hat sits on a wall .",
    "two dogs sleep on a red so@@ fa .",
    "a girl in a red dress runs .",
]
WORDS = st.sampled_from(["a", "b", "c@@", "d"])
LINES = st.lists(st.lists(WORDS, max_size=8).map(" ".join), min_size=1, max_size=6)


def new(lines: list[str], count: int) -> list[str]:
    return list(recombine(Text.of(lines), count))


def joined(lines: list[str]) -> set[str]:
    """All that can be made of lines, by the definition."""
    old = [line.split() for line in lines]
    cuts = [
        (words[:j], words[j:])
        for words in old
        for j in range(1, len(words) - 1)
        if "@@" not in words[j - 1] + words[j]
    ]
    found = {" ".join(head + tail) for head, one in cuts for _, tail in cuts if one[0] == tail[0]}
    return {line for line in found if len(line.split()) <= LONGEST} - {
        " ".join(words) for words in old
    }


def test_two_sentences_are_joined_at_a_shared_word() -> None:
    made = new(OLD, 15)
    assert len(made) > 5
    assert set(made) <= joined(OLD)
    for line in made:
        for left, right in pairwise(line.split()):
            assert (left == "so@@") == (right == "fa")


@given(LINES, st.integers(0, 30))
def test_nothing_else_is_made(lines: list[str], count: int) -> None:
    made = new(lines, count)
    assert len(made) <= count
    assert len(set(made)) == len(made)
    assert set(made) <= joined(lines)
    assert new(lines, count) == made


def test_all_is_made_if_asked_for_long_enough() -> None:
    assert set(new(OLD, 2000)) == joined(OLD)


def test_batches_and_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index made in pieces is the same; small batches find the same sentences in the end."""
    whole = new(OLD, 2000)
    monkeypatch.setattr(recombination, "CHUNK", 4)
    assert new(OLD, 2000) == whole
    monkeypatch.setattr(recombination, "BATCH", 3)
    assert sorted(new(OLD, 2000)) == sorted(whole)


def test_every_place_of_a_word_is_as_likely() -> None:
    """Of ten ends that go on after one word each is met with."""
    lines = ["x y on z w", *(f"p q on r{i} s{i}" for i in range(10))]
    ends = Counter(line.split()[3] for line in new(lines * 20, 400) if line.startswith("x y"))
    assert set(ends) == {f"r{i}" for i in range(10)}


def test_long_sentences_are_not_made() -> None:
    lines = [
        " ".join([*(f"a{i}" for i in range(n)), "on", *(f"b{i}" for i in range(n))])
        for n in (10, 29, 31, 50)
    ]
    made = new(lines, 2000)
    assert set(made) == joined(lines)
    assert max(len(line.split()) for line in made) <= LONGEST
    assert made
