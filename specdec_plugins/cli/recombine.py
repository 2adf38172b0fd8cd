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
from specdec_plugins.inference.streams import tell

PROG = program("recombine.py")
MOST_DIGITS = 18


@ends_quietly(PROG)
def main() -> int:
    prepare_terminal(PROG)
    if len(sys.argv) != 3:
        tell(str(__doc__))
        return 2
    count = sys.argv[2]
    if not count.isdecimal() or len(count) > MOST_DIGITS or int(count) == 0:
        tell(f"{PROG}: COUNT {count}: must be a whole number from 1 to {10**MOST_DIGITS - 1}")
        return 2
    try:
        # A line ends at a line feed and nowhere else.
        with open(sys.argv[1], encoding="utf-8", newline="\n") as file:
            text = Text.of(file)
    except (OSError, UnicodeDecodeError) as error:
        tell(f"{PROG}: {sys.argv[1]}: cannot be read ({error})")
        return 1
    if not text.words:
        tell(f"{PROG}: {sys.argv[1]}: holds no sentence; name a text")
        return 1
    try:
        made = 0
        for line in recombine(text, int(count)):
            print(line)
            made += 1
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        # Or Python would try again when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        fault = f"cannot be written to ({error.strerror}); make room"
        tell(f"{PROG}: standard output: {fault}")
        return 1
    if made < int(count):
        tell(f"{PROG}: {made} of {count} were made, and no others found; give more text")
    return 0
