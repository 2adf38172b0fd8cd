"""A few sizes, each no smaller than what it is for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.engines.sizes import PaddedSizes

ALL = ("room", "slots", "source", "rows")


@given(size=st.integers(0, 6000))
def test_nothing_is_cut(size: int) -> None:
    sizes = PaddedSizes()
    for name in ALL:
        padded = getattr(sizes, name)(size)
        assert padded >= size
        assert getattr(sizes, name)(padded) == padded


@given(prefix=st.integers(0, 200), slots=st.integers(1, 64))
def test_a_block_is_not_cut_either(prefix: int, slots: int) -> None:
    assert PaddedSizes().block(prefix, slots) >= prefix + slots


def test_they_are_few() -> None:
    sizes = PaddedSizes()
    for name in ALL:
        assert len({getattr(sizes, name)(size) for size in range(1, 257)}) <= 24
