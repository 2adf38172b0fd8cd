"""Make new source sentences out of old ones, for a verifier to translate (scripts/distill.sh).

    scripts/recombine.py SOURCE COUNT >NEW

Two sentences that share a word are cut there, and the beginning of one goes on as the other:
"a man in a hat sits | on a wall" and "two dogs sleep | on a red sofa" meet at their "on". A
drafter needs sources to learn on, not references; what it sees of a verifier on sentences that the
verifier was not trained on is what it will see in use. SOURCE is segmented text; `@@ ` joints are
not cut. The result depends on SOURCE and COUNT alone.
"""

from __future__ import annotations

import os
import random
import sys
from collections import defaultdict
from pathlib import Path

from specdec_plugins.cli.terminal import prepare_terminal, program

PROG = program("recombine.py")

LONGEST = 60


def main() -> int:
    prepare_terminal(PROG)
    if len(sys.argv) != 3 or not sys.argv[2].isdigit():
        print(__doc__, file=sys.stderr)
        return 2
    try:
        lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        print(f"{PROG}: {sys.argv[1]}: cannot be read ({error})", file=sys.stderr)
        return 1
    if not any(line.strip() for line in lines):
        print(f"{PROG}: {sys.argv[1]}: holds no sentence; name a text", file=sys.stderr)
        return 1
    new = recombine([line.split() for line in lines], int(sys.argv[2]))
    try:
        print("".join(" ".join(words) + "\n" for words in new), end="", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        # Or Python would try again when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        fault = f"cannot be written to ({error.strerror}); make room"
        print(f"{PROG}: standard output: {fault}", file=sys.stderr)
        return 1
    return 0


def recombine(sentences: list[list[str]], count: int) -> list[list[str]]:
    """Up to ``count`` new sentences, none of them among the old ones, none twice."""
    generator = random.Random(1)
    cuts = [
        [j for j in range(1, len(words) - 1) if not f"{words[j - 1]} {words[j]}".count("@@")]
        for words in sentences
    ]
    places: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for i, words in enumerate(sentences):
        for j in cuts[i]:
            places[words[j]].append((i, j))
    known = {tuple(words) for words in sentences}
    made: list[list[str]] = []
    for _ in range(4 * count):
        first = generator.randrange(len(sentences))
        if len(made) == count or not cuts[first]:
            continue
        cut = generator.choice(cuts[first])
        second, follow = generator.choice(places[sentences[first][cut]])
        words = sentences[first][:cut] + sentences[second][follow:]
        if len(words) <= LONGEST and tuple(words) not in known:
            known.add(tuple(words))
            made.append(words)
    return made
