#!/usr/bin/env python3
"""Make new source sentences of old ones, for a verifier to translate (scripts/distill.sh).

    scripts/recombine.py SOURCE COUNT >NEW

Two sentences that share a word are cut there, and the beginning of one goes on as the other: "a man
in a hat sits | on a wall" and "two dogs sleep | on a red sofa" meet at their "on". SOURCE is
segmented text, which is not cut at `@@ `. The result depends on SOURCE and COUNT alone.
"""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

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


def main() -> None:
    """Write the sentences to standard output."""
    if len(sys.argv) != 3 or not sys.argv[2].isdecimal():
        sys.exit(str(__doc__))
    sys.stdout.reconfigure(encoding="utf-8")
    try:
        with open(sys.argv[1], encoding="utf-8", newline="\n") as file:
            sentences = [line.split() for line in file]
    except OSError as error:
        sys.exit(f"recombine.py: {sys.argv[1]}: {error.strerror}")
    if not sentences:
        sys.exit(f"recombine.py: {sys.argv[1]}: is empty")
    new = recombine(sentences, int(sys.argv[2]))
    sys.stdout.writelines(f"{line}\n" for line in new)


if __name__ == "__main__":
    main()
