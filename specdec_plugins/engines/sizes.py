"""The few sizes to which what a step is handed is padded. No fairseq in here."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator


def _steps(first: int, *runs: tuple[int, int]) -> Iterator[int]:
    """``first``, then in steps of so many up to so many, run by run."""
    yield first
    for step, last in runs:
        while first < last:
            first += step
            yield first


class Sizes:
    """The sizes that steps are handed: here exactly what there is, with room for the new keys and
    values behind those that are cached."""

    exact = True
    CHUNK = 64
    """Positions by which the cache grows."""

    def room(self, positions: int) -> int:
        """Positions that a cache has where so many are needed."""
        return -(-max(positions, 1) // self.CHUNK) * self.CHUNK

    def slots(self, tokens: int) -> int:
        """New tokens."""
        return tokens

    def block(self, prefix: int, slots: int) -> int:
        """New tokens of a prefix, and the slots of a block behind them."""
        return prefix + slots

    def source(self, tokens: int) -> int:
        """Source tokens."""
        return tokens

    def rows(self, rows: int) -> int:
        """Rows of a batch."""
        return rows


class PaddedSizes(Sizes):
    """A few sizes: where one changes from call to call, an engine may lose as much time as some of
    a step takes, and more where it meets one for the first time. Of the cache a step is handed all;
    masks are always given."""

    exact = False
    CACHED = tuple(_steps(32, (32, 128), (64, 512), (256, 4096)))
    SOURCE = tuple(_steps(16, (8, 32), (16, 64), (32, 128), (64, 512), (256, 4096)))
    # A draft of a round number of tokens goes with the one before it.
    SLOTS = (1, 5, *_steps(9, (8, 33), (16, 129), (64, 1025)))
    # Mostly what one step has committed, now and then two. Few of them: what is compiled for one
    # holds the weights once more, and what is read in turn leaves the processor's cache.
    PREFIX = (8, 16, *_steps(32, (32, 256), (256, 4096)))
    ROWS = tuple(_steps(1, (1, 4), (2, 8), (4, 16), (8, 64), (32, 256), (128, 4096)))

    def room(self, positions: int) -> int:
        return _at_least(positions, self.CACHED)

    def slots(self, tokens: int) -> int:
        return _at_least(tokens, self.SLOTS)

    def block(self, prefix: int, slots: int) -> int:
        return _at_least(prefix, self.PREFIX) + slots

    def source(self, tokens: int) -> int:
        return _at_least(tokens, self.SOURCE)

    def rows(self, rows: int) -> int:
        return _at_least(rows, self.ROWS)


def _at_least(size: int, sizes: tuple[int, ...]) -> int:
    """Return the first of the sizes that holds so many; beyond them, as many as there are."""
    place = bisect_left(sizes, size)
    return sizes[place] if place < len(sizes) else size
