"""A translator for the tests of corpora, which says which line it was given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from specdec_plugins.files.lines import Line
from specdec_plugins.inference import Translation


class Numberer:
    """``text`` in line 3 becomes ``3:text``."""

    def translate(self, lines: Iterable[Line]) -> Iterator[Translation]:
        for line in lines:
            yield Translation(f"{line.number}:{line.text}")
