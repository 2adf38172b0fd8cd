#!/usr/bin/env python3
"""Draw the first sentence of a trace as a picture, without a style sheet, for any viewer.

    specdec-translate ... --trace trace.jsonl --controller constant
    scripts/trace_svg.py trace.jsonl >trace.svg

Each row is a step: drafted tokens, and after the accepted ones the verifier's own. A tree has no
such rows; draw a controller of chains.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from html import escape

import installed  # noqa: F401 (first)

from specdec_plugins.decoding.step_result import StepTrace
from specdec_plugins.files.command import Parser, command, put
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.inference.trace_page import SentenceTrace, read_trace

# Pixels: of the picture at least, a letter, a box beside its text, between boxes, between steps.
WIDTH, LETTER, PADDING, GAP, PITCH = 860.0, 7.3, 14.0, 5.0, 35.0
LEFT, INDENT, FIRST = 16.0, 60.0, 103.0
TITLE = LETTER * 13 / 12  # a letter of the sentence
#: Attributes of a box, and of its text, by what became of the token.
STYLES = {
    "accepted": ('fill="#dafbe1" stroke="#2da44e" stroke-width="1.5"', ""),
    "rejected": (
        'fill="#ffebe9" stroke="#cf222e" stroke-dasharray="5 3" stroke-width="1.5"',
        ' text-decoration="line-through" fill="#82071e"',
    ),
    "unread": (
        'fill="#ffffff" stroke="#57606a" stroke-dasharray="1.5 2.5" stroke-width="1.5"',
        ' fill="#57606a"',
    ),
    "bonus": ('fill="#ddf4ff" stroke="#0969da" stroke-width="2.5"', ""),
}
FONT = 'font-family="ui-monospace, \'DejaVu Sans Mono\', Menlo, Consolas, monospace" font-size="12"'


def tokens(step: StepTrace) -> Iterator[tuple[str, str]]:
    """Yield the tokens of a step, each with what became of it."""
    for token in step.drafted[: step.accepted]:
        yield token, "accepted"
    if step.bonus is not None:
        yield step.bonus, "bonus"
    for index, token in enumerate(step.drafted[step.accepted :], step.accepted):
        yield token, "rejected" if index < step.verify_length else "unread"


def boxes(row: Iterable[tuple[str, str]], y: float) -> Iterator[str]:
    """Yield a row of tokens, whose text stands at a height."""
    x = INDENT
    for token, state in row:
        box, text = STYLES[state]
        width = LETTER * len(token) + PADDING
        yield f'<rect {box} rx="4" x="{x:.1f}" y="{y - 15}" width="{width:.1f}" height="22"/>'
        yield f'<text x="{x + PADDING / 2:.1f}" y="{y}"{text}>{escape(token)}</text>'
        x += width + GAP


def picture(trace: SentenceTrace) -> Iterator[str]:
    """Yield the lines of a sentence's picture."""
    if any(step.parents is not None for step in trace.steps):
        raise InferenceError("the drafts are trees; trace with --controller constant")
    legend = FIRST + PITCH * len(trace.steps) + 5
    ends = (sum(LETTER * len(t) + PADDING + GAP for t, _ in tokens(step)) for step in trace.steps)
    longest = max(len(trace.source), len(trace.output))
    width = max(WIDTH, INDENT + max(ends, default=0.0) + LEFT, 2 * LEFT + TITLE * longest)
    width = round(width, 1)
    size = f'width="{width}" height="{legend + 28}" viewBox="0 0 {width} {legend + 28}"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" {size} {FONT} fill="#1b1b1b">'
    yield f'  <rect x="0" y="0" width="{width}" height="{legend + 28}" fill="#ffffff"/>'
    for y, line in ((28.0, trace.source), (48.0, trace.output)):
        yield f'  <text font-size="13" x="{LEFT}" y="{y}">{escape(line)}</text>'
    count = sum(step.committed for step in trace.steps)
    grey = f'  <text fill="#5a5a5a" x="{LEFT}"'
    yield f'{grey} y="68.0">{count} tokens in {len(trace.steps)} steps</text>'
    rows = [FIRST + PITCH * number for number in range(len(trace.steps))]
    for number, y in enumerate(rows, start=1):
        yield f'{grey} y="{y}">{number}</text>'
    for step, y in zip(trace.steps, rows, strict=True):
        yield from (f"  {line}" for line in boxes(tokens(step), y))
    yield from (f"  {line}" for line in boxes(zip(STYLES, STYLES), legend))
    yield "</svg>"


@command()
def main(argv: Sequence[str]) -> None:
    """Draw the first sentence of the trace that the command line names."""
    parser = Parser(__doc__)
    parser.add_argument("trace", metavar="TRACE", help="of specdec-translate --trace")
    path = parser.parse_args(argv).trace
    sentence = next((sentence for sentence in read_trace(path) if sentence.steps), None)
    if sentence is None:
        raise InferenceError(f"{path}: has no step")
    put("\n".join([*picture(sentence), ""]))


if __name__ == "__main__":
    sys.exit(main())
