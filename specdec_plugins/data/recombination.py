"""New sentences made of the beginning of one and the end of another, in bounded memory.

All is held in arrays, 9 bytes a word of the text at most, and made in batches.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LONGEST = 60
"""Words of a new sentence, at most."""
BATCH = 1 << 15
CHUNK = 1 << 20
JOINT = "@@"

Numbers = NDArray[np.int64]
Hashes = NDArray[np.uint64]


@dataclass(frozen=True)
class Text:
    """Sentences as numbers of words, one after the other."""

    words: list[str]
    """The words by their numbers."""
    tokens: NDArray[np.int32]
    starts: Numbers
    """``(sentences + 1)``: where each begins among ``tokens``, and where the last one ends."""

    @classmethod
    def of(cls, lines: Iterable[str]) -> Text:
        """Return the words of lines, one sentence a line."""
        numbers: defaultdict[str, int] = defaultdict()
        numbers.default_factory = numbers.__len__
        tokens, starts = array("i"), array("q", [0])
        for line in lines:
            tokens.extend(map(numbers.__getitem__, line.split()))
            starts.append(len(tokens))
        return cls(list(numbers), np.frombuffer(tokens, np.int32), np.frombuffer(starts, np.int64))


def recombine(text: Text, count: int) -> Iterator[str]:
    """Up to ``count`` new sentences, none of them in ``text``, none twice.

    Two sentences are joined at a word that both have, not as their first or last one, and neither
    inside a word that is cut into subwords (``@@``). The result depends on the arguments alone.
    """
    # Unlike those of newer generators, its numbers are the same in every version of numpy.
    random = np.random.RandomState(1)
    places = _places(text)
    index = _Index(text, places)
    seen = np.unique(_text_hashes(text))
    tries = 4 * count
    while tries > 0 and count > 0:
        size = min(BATCH, tries)
        tries -= size
        cuts, heads = _draw_cuts(text, places, random, size)
        tails = index.draw(text.tokens[cuts], random)
        ends = text.starts[np.searchsorted(text.starts, tails, "right")]
        short = (cuts - heads) + (ends - tails) <= LONGEST
        new, lengths = _joined(text, heads[short], cuts[short], tails[short], ends[short])
        hashes = _hashes(new, lengths)
        fresh = _fresh(hashes, seen)[:count]
        count -= len(fresh)
        # Two sorted runs, which a stable sort merges.
        seen = np.sort(np.concatenate((seen, np.sort(hashes[fresh]))), kind="stable")
        for row, length in zip(new[fresh].tolist(), lengths[fresh].tolist()):
            yield " ".join(map(text.words.__getitem__, row[:length]))


def _places(text: Text) -> NDArray[np.bool_]:
    """``(tokens)``: where a sentence may be cut before the token."""
    joint = np.array([JOINT in word for word in text.words], bool)
    places = ~joint[text.tokens]
    places[1:] &= ~joint[text.tokens[:-1]]
    begins, ends = text.starts[:-1], text.starts[1:]
    places[begins[begins < ends]] = False
    places[ends[begins < ends] - 1] = False
    return places


class _Index:
    """The places of every word."""

    def __init__(self, text: Text, places: NDArray[np.bool_]) -> None:
        chunks = [slice(i, i + CHUNK) for i in range(0, len(places), CHUNK)]
        self.counts = np.zeros(len(text.words), np.int64)
        for chunk in chunks:
            self.counts += self._count(text.tokens[chunk][places[chunk]])
        self.first = np.cumsum(self.counts) - self.counts
        self.order = np.empty(int(self.counts.sum()), np.uint32)
        free = self.first.copy()
        for chunk in chunks:
            positions = np.flatnonzero(places[chunk]) + chunk.start
            words = text.tokens[positions]
            by_word = np.argsort(words, kind="stable")
            counts = self._count(words)
            slots = np.repeat(free - np.cumsum(counts) + counts, counts) + np.arange(len(words))
            self.order[slots] = positions[by_word]
            free += counts

    def _count(self, words: NDArray[np.int32]) -> Numbers:
        return np.bincount(words, minlength=len(self.counts))

    def draw(self, words: NDArray[np.int32], random: np.random.RandomState) -> Numbers:
        """One of the places of each word."""
        which = (random.random_sample(len(words)) * self.counts[words]).astype(np.int64)
        return self.order[self.first[words] + which].astype(np.int64)


def _draw_cuts(
    text: Text, places: NDArray[np.bool_], random: np.random.RandomState, size: int
) -> tuple[Numbers, Numbers]:
    """Places of ``size`` random sentences, less those that have none, and where these begin."""
    sentences = (random.random_sample(size) * (len(text.starts) - 1)).astype(np.int64)
    chance = random.random_sample(size)
    heads = text.starts[sentences]
    lengths = text.starts[sentences + 1] - heads
    rows = np.repeat(np.arange(size), lengths)
    positions = np.repeat(heads - np.cumsum(lengths) + lengths, lengths) + np.arange(len(rows))
    cuttable = places[positions]
    counts = np.bincount(rows[cuttable], minlength=size)
    which = np.cumsum(counts) - counts + (chance * counts).astype(np.int64)
    return positions[cuttable][which[counts > 0]], heads[counts > 0]


def _joined(
    text: Text, heads: Numbers, cuts: Numbers, tails: Numbers, ends: Numbers
) -> tuple[NDArray[np.int32], Numbers]:
    """Tokens from ``heads`` to ``cuts``, then from ``tails`` to ``ends``: ``(n, LONGEST)``, and
    their numbers."""
    columns = np.arange(LONGEST)
    before = (cuts - heads)[:, None]
    lengths = cuts - heads + ends - tails
    positions = np.where(columns < before, heads[:, None], tails[:, None] - before) + columns
    positions[columns >= lengths[:, None]] = 0
    return text.tokens[positions], lengths


def _hashes(tokens: NDArray[np.int32], lengths: Numbers) -> Hashes:
    """Return a number for each sentence of ``(n, LONGEST)`` tokens; of others it is almost surely
    another one, and if not, a new sentence is taken for a known one."""
    # After Steele et al., "Fast splittable pseudorandom number generators", 2014.
    mixed = (tokens + np.arange(LONGEST) * (1 << 32)).astype(np.uint64)
    mixed += np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return np.where(np.arange(LONGEST) < lengths[:, None], mixed, np.uint64(0)).sum(1)


def _text_hashes(text: Text) -> Hashes:
    """Return the hashes of the sentences that are no longer than new ones can be."""
    lengths = np.diff(text.starts)
    chosen = np.flatnonzero((lengths > 0) & (lengths <= LONGEST))
    found = [np.empty(0, np.uint64)]
    for i in range(0, len(chosen), BATCH):
        begins = text.starts[chosen[i : i + BATCH]]
        ends = text.starts[chosen[i : i + BATCH] + 1]
        found.append(_hashes(*_joined(text, begins, ends, ends, ends)))
    return np.concatenate(found)


def _fresh(hashes: Hashes, seen: Hashes) -> Numbers:
    """Return the places where numbers stand for the first time that are not in ``seen``, which is
    sorted."""
    unique, first = np.unique(hashes, return_index=True)
    where = np.searchsorted(seen, unique)
    known = where < len(seen)
    known[known] = seen[where[known]] == unique[known]
    return np.sort(first[~known])
