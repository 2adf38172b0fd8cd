"""Caches with room for what they have to hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.engines.sizes import PaddedSizes, Sizes


@pytest.mark.parametrize("sizes", [Sizes(), PaddedSizes()])
@given(size=st.integers(0, 6000))
def test_room(sizes: Sizes, size: int) -> None:
    room = sizes.room(size)
    assert size <= room < size + 257
    assert sizes.room(room) == room
