"""Names beside the points of a plot, such that they hide neither each other nor the points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from specdec_plugins.decoding.arrays import Floats

OFFSETS = tuple(
    (dx * reach, dy * reach, reach)
    for reach in (1.0, 1.8, 2.8)
    for dx, dy in ((8, 6), (-8, 6), (8, -6), (-8, -6), (0, 11), (0, -11), (13, 0), (-13, 0))
)
"""The places where a label may stand beside its point, in typographic points, and how far that
is."""
SIZE = 8.0
"""The size of letters, in typographic points."""


@dataclass(frozen=True)
class Label:
    """A text at a point, both in the data's coordinates; without text the point is just avoided."""

    x: float
    y: float
    text: str
    color: object
    """A colour as matplotlib takes it."""


Curve = Sequence[tuple[float, float]]
"""The points of a line, in the data's coordinates."""
Box = tuple[float, float, float, float]
"""Left, bottom, right, top, in typographic points."""


def place_labels(
    figure: Figure, axes: Axes, labels: Sequence[Label], curves: Sequence[Curve] = ()
) -> None:
    """Write each label at the first of ``OFFSETS`` where least of everything else is."""
    # The layout must be known to know what is near to what.
    figure.draw_without_rendering()
    scale = 72 / figure.dpi
    points = [axes.transData.transform((label.x, label.y)) * scale for label in labels]
    taken: list[Box] = [(x - 4, y - 4, x + 4, y + 4) for x, y in points]
    lines = [axes.transData.transform(curve) * scale for curve in curves]
    drawn = [box for line in lines for box in _along(line)]
    for label, (x, y) in zip(labels, points):
        if not label.text:
            continue
        boxes = [_box(x + dx, y + dy, label.text) for dx, dy, _ in OFFSETS]
        # To be far away or to hide a line is bad, to hide a point or another label is worse.
        costs = [
            10 * reach + _count(box, drawn) + 1000 * _count(box, taken)
            for box, (_, _, reach) in zip(boxes, OFFSETS)
        ]
        best = costs.index(min(costs))
        taken.append(boxes[best])
        axes.annotate(
            label.text,
            (label.x, label.y),
            OFFSETS[best][:2],
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=SIZE,
            color=label.color,
        )


def _along(line: Floats) -> Iterator[Box]:
    """Small boxes along a line."""
    for (x, y), (u, v) in pairwise(line):
        pieces = int(max(abs(u - x), abs(v - y)) / 2) + 1
        for piece in range(pieces + 1):
            at_x, at_y = x + (u - x) * piece / pieces, y + (v - y) * piece / pieces
            yield at_x - 1, at_y - 1, at_x + 1, at_y + 1


def _count(box: Box, others: Sequence[Box]) -> int:
    """How many it overlaps."""
    return sum(_overlap(box, other) for other in others)


def _box(x: float, y: float, text: str) -> Box:
    half_width, half_height = 0.3 * SIZE * len(text), 0.5 * SIZE
    return x - half_width, y - half_height, x + half_width, y + half_height


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
