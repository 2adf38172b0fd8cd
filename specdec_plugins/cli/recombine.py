"""Make new source sentences out of old ones, for a verifier to translate (scripts/distill.sh).

    scripts/recombine.py SOURCE COUNT >NEW

Two sentences that share a word are cut there, and the beginning of one goes on as the other:
"a man in a hat sits | on a wall" and "two dogs sleep | on a red sofa" meet at their "on". A
drafter needs sources to learn on, not references; what it sees of a verifier on sentences that the
verifier was not trained on is what it will see in use. SOURCE is segmented text; `@@ ` joints are
not cut. The result depends on SOURCE and COUNT alone.

Memory: about 9 bytes a word of SOURCE and 8 a sentence of SOURCE and NEW.
"""

from __future__ import annotations

import os
import sys

from specdec_plugins.cli.terminal import ends_quietly, prepare_terminal, program
from specdec_plugins.data.recombination import Text, recombine

PROG = program("recombine.py")


@ends_quietly(PROG)
def main() -> int:
    prepare_terminal(PROG)
    if len(sys.argv) != 3 or not sys.argv[2].isdigit():
        print(__doc__, file=sys.stderr)
        return 2
    try:
        # A line ends at a line feed and nowhere else.
        with open(sys.argv[1], encoding="utf-8", newline="\n") as file:
            text = Text.of(file)
    except (OSError, UnicodeDecodeError) as error:
        print(f"{PROG}: {sys.argv[1]}: cannot be read ({error})", file=sys.stderr)
        return 1
    if not text.words:
        print(f"{PROG}: {sys.argv[1]}: holds no sentence; name a text", file=sys.stderr)
        return 1
    try:
        for line in recombine(text, int(sys.argv[2])):
            print(line)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        # Or Python would try again when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        fault = f"cannot be written to ({error.strerror}); make room"
        print(f"{PROG}: standard output: {fault}", file=sys.stderr)
        return 1
    return 0
