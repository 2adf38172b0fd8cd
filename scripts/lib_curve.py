"""The picture of acceptance lengths over a training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lib_first_page import BLUE, MARGIN, WIDTH, picture, text

LEFT, TOP, HEIGHT = 60, 60, 220
"""Of the axes, in pixels: what is left of them and above, and their height."""
WITHOUT = 1.0
"""Tokens a step without drafts."""


def curve(title: str, about: str, points: Sequence[tuple[float, float]]) -> str:
    """Acceptance length over minutes of training as SVG, from what a step writes without drafts.

    Args:
        points: minutes and acceptance lengths, by time.
    """
    most = max(minutes for minutes, _ in points)
    top = max(length for _, length in points)
    whole = int(top) + 1

    def place(minutes: float, length: float) -> tuple[float, float]:
        share = (length - WITHOUT) / (whole - WITHOUT)
        return LEFT + (WIDTH - LEFT - 4 * MARGIN) * minutes / most, TOP + HEIGHT * (1 - share)

    def grid() -> Iterator[str]:
        for length in range(int(WITHOUT), whole + 1):
            x, y = place(most, length)
            yield f'<line x1="{LEFT}" x2="{x:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="#d9d9d9"/>'
            yield text(LEFT - 22, y + 4, str(length))
        for part in range(5):
            x, y = place(most * part / 4, WITHOUT)
            yield text(x - 10, y + 22, f"{most * part / 4:.0f} min")

    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
    drawn = [
        text(MARGIN, MARGIN + 12, title, "head"),
        text(MARGIN, MARGIN + 32, about, "soft"),
        *grid(),
        f'<polyline points="{line}" fill="none" stroke="{BLUE}" stroke-width="2"/>',
    ]
    for point in points:
        x, y = place(*point)
        drawn.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{BLUE}"/>')
    x, y = place(*points[-1])
    drawn.append(text(x - 4, y - 10, f"{points[-1][1]:.2f}"))
    return picture(TOP + HEIGHT + 2 * MARGIN, drawn)
