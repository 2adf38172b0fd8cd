"""What steps cost, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from specdec_plugins.decoding.arrays import Floats

Points = dict[str, list[list[float]]]
"""``draft`` and ``verify``: pairs of slots and seconds, by slots, for one batch size."""


@dataclass(frozen=True)
class StepCosts:
    """Seconds of the parts of a step, ``(rows + 1, slots + 1)``: by batch size and slots.

    Neither falls with the slots. The row of 0 rows is that of 1.
    """

    draft: Floats
    """Drafting n slots; 0 for none."""
    verify: Floats
    """Scoring and committing m slots and the bonus token: all else that a step does."""

    @classmethod
    def between(
        cls,
        measured: Mapping[int, Points],
        rows: int,
        most: int,
        padded: Callable[[int], int] | None = None,
    ) -> StepCosts:
        """Interpolate linearly, between slots and between batch sizes.

        Args:
            measured: by batch size.
            rows: the largest batch size to be known.
            most: the most slots.
            padded: where an engine verifies more slots than it is asked to, how many: they cost
                what so many cost.
        """
        slots, sizes = list(range(most + 1)), sorted(measured)
        verified = slots if padded is None else list(map(padded, slots))
        tables = []
        for part, counts in (("draft", slots), ("verify", verified)):
            lines = [np.interp(counts, *np.array(measured[size][part]).T) for size in sizes]
            wanted = np.maximum(1, np.arange(rows + 1))
            table = np.stack(
                [np.interp(wanted, sizes, column) for column in np.transpose(lines)], 1
            )
            # What is slower than the same with more slots was disturbed.
            tables.append(np.minimum.accumulate(table[:, ::-1], axis=1)[:, ::-1])
        return cls(*tables)
