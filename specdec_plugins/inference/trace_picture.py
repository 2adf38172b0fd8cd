"""One sentence of a trace as a picture: SVG that is complete in itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from specdec_plugins.decoding.step_result import StepTrace
from specdec_plugins.inference.trace_file import SentenceTrace
from specdec_plugins.inference.trace_report import template

TEMPLATE = "trace_picture.svg"
LETTER, PADDING, GAP, LINE = 7.3, 7.0, 5.0, 30.0
"""Widths of a letter, beside a text and between boxes, and height of a line, in pixels."""
MARGIN, STEP = 16.0, 44.0
"""Around the picture, and left of the first box, where the step's number stands."""
WIDTH = 860.0
UNPRINTABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
"""What XML cannot hold, or nobody can see."""


@dataclass(frozen=True)
class Box:
    """A token."""

    kind: str
    """``forced``, ``accepted``, ``rejected``, ``unread`` (drafted and not verified) or
    ``bonus``."""
    text: str
    x: float
    y: float
    width: float


def draw_sentence(sentence: SentenceTrace) -> str:
    """The picture: what is forced, then a step a row, or several where it is long; of a tree, the
    accepted way and then the other tokens by probability.

    Raises:
        ValueError: a line without words, for which there were no steps.
    """
    if not sentence.steps:
        raise ValueError("has no words, and no steps to draw")
    boxes: list[Box] = []
    numbers: list[tuple[int, float]] = []
    y = MARGIN + 2 * LINE
    kinds = KINDS + (FORCED,) * bool(sentence.forced)
    if sentence.forced:
        boxes += _placed([(FORCED, token) for token in sentence.forced], y)
        y = boxes[-1].y + LINE + GAP
    for number, step in enumerate(sentence.steps, start=1):
        numbers.append((number, y))
        placed = list(_placed(_tokens(step), y))
        boxes += placed
        y = placed[-1].y + LINE + GAP
    tokens = sum(step.committed for step in sentence.steps)
    picture = template(TEMPLATE).render(
        sentence=sentence,
        boxes=boxes,
        numbers=numbers,
        tokens=tokens,
        width=WIDTH,
        height=y + 2 * LINE,
        legend=list(_placed([(kind, kind) for kind in kinds], y + GAP)),
        line=LINE,
        margin=MARGIN,
    )
    return "\n".join(UNPRINTABLE.sub("\ufffd", line) for line in picture.split("\n"))


KINDS = ("accepted", "rejected", "unread", "bonus")
FORCED = "forced"


def _tokens(step: StepTrace) -> Iterator[tuple[str, str]]:
    """Kind and text of what a step drafted, and then of what the verifier added."""
    for token in step.drafted[: step.accepted]:
        yield KINDS[0], token
    if step.bonus is not None:
        yield KINDS[3], step.bonus
    for place, token in enumerate(step.drafted[step.accepted :], start=step.accepted):
        yield KINDS[1 if place < step.verify_length else 2], token


def _placed(tokens: Iterable[tuple[str, str]], y: float) -> Iterator[Box]:
    """Boxes from left to right, and on below where a row is full."""
    x = MARGIN + STEP
    for kind, text in tokens:
        width = len(text) * LETTER + 2 * PADDING
        if x + width > WIDTH - MARGIN and x > MARGIN + STEP:
            x, y = MARGIN + STEP, y + LINE
        yield Box(kind, text, x, y, width)
        x += width + GAP
