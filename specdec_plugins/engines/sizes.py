"""The sizes of the inputs of steps. No fairseq in here."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator


def _steps(first: int, *runs: tuple[int, int]) -> Iterator[int]:
    """Yield ``first``, then numbers ``step`` apart up to ``last``, run by run."""
    yield first
    for step, last in runs:
        while first < last:
            first += step
            yield first


class Sizes:
    """Exact sizes, with room for new keys and values behind the cached ones."""

    exact = True
    CHUNK = 64
    """Positions by which the cache grows."""

    def room(self, positions: int) -> int:
        """Return the positions of a cache that needs this many."""
        return -(-max(positions, 1) // self.CHUNK) * self.CHUNK

    def slots(self, tokens: int) -> int:
        """Return the number of new tokens."""
        return tokens

    def block(self, prefix: int, slots: int) -> int:
        """Return the new tokens of a prefix and the slots of the block behind it."""
        return prefix + slots

    def source(self, tokens: int) -> int:
        """Return the number of source tokens."""
        return tokens

    def rows(self, rows: int) -> int:
        """Return the rows of a batch."""
        return rows


class PaddedSizes(Sizes):
    """A few sizes, for engines to which every new size costs time.

    A step gets the whole cache, and always masks.
    """

    exact = False
    CACHED = tuple(_steps(32, (32, 128), (64, 512), (256, 4096)))

    def room(self, positions: int) -> int:
        return _at_least(positions, self.CACHED)


def _at_least(size: int, sizes: tuple[int, ...]) -> int:
    """Return the first of the sizes that is large enough; beyond them, ``size``."""
    index = bisect_left(sizes, size)
    return sizes[index] if index < len(sizes) else size
