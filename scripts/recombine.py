#!/usr/bin/env python3
"""Make new source sentences of old ones, for a verifier to translate (scripts/distill.sh).

    scripts/recombine.py SOURCE COUNT >NEW

Two sentences that share a word are cut there, and the beginning of one goes on as the other: "a man
in a hat sits | on a wall" and "two dogs sleep | on a red sofa" meet at their "on". SOURCE is
segmented text, which is not cut at `@@ `. The result depends on SOURCE and COUNT alone. It is an
error if SOURCE gives fewer than COUNT sentences, after those that it gives.
"""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from texts import lines_of

from specdec_plugins.files.command import Parser, command, positive, put
from specdec_plugins.files.errors import InferenceError

MAX_WORDS = 60


def cuts(sentence: list[str]) -> list[int]:
    """Return where a sentence may be cut: inside, and not inside a word."""
    inside = enumerate(pairwise(sentence[:-1]), 1)
    return [i for i, (a, b) in inside if not a.endswith("@@") and "@@" not in b]


def recombine(sentences: list[list[str]], count: int) -> Iterator[str]:
    """Yield up to ``count`` new sentences, each once."""
    draw = random.Random(1)
    seen = {*map(" ".join, sentences)}
    made = 0
    tails = defaultdict(list)
    for sentence in sentences:
        for cut in cuts(sentence):
            tails[sentence[cut]].append((sentence, cut))
    for _ in range(4 * count):
        if made == count:
            return
        sentence = draw.choice(sentences)
        if heads := cuts(sentence):
            head = draw.choice(heads)
            other, cut = draw.choice(tails[sentence[head]])
            words = sentence[:head] + other[cut:]
            new = " ".join(words)
            if len(words) <= MAX_WORDS and new not in seen:
                seen.add(new)
                made += 1
                yield new


@command()
def main(argv: Sequence[str]) -> None:
    """Write the sentences to standard output."""
    parser = Parser(__doc__)
    parser.add_argument("source", metavar="SOURCE", help="segmented sentences, one a line")
    parser.add_argument("count", metavar="COUNT", type=positive, help="new sentences to make")
    args = parser.parse_args(argv)
    sentences = [line.split() for line in lines_of(args.source)]
    made = 0
    for line in recombine(sentences, args.count):
        made += 1
        put(f"{line}\n")
    if made < args.count:
        raise InferenceError(f"{args.source}: gives {made} new sentences, not {args.count}")


if __name__ == "__main__":
    sys.exit(main())
