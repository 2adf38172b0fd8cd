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

from collections.abc import Sequence

from specdec_plugins.data.recombination import Text, recombine
from specdec_plugins.files.errors import InferenceError, UsageError
from specdec_plugins.files.streams import put, tell
from specdec_plugins.files.terminal import command, program

PROG = program("recombine.py")
MOST_DIGITS = 18


@command(PROG)
def main(argv: Sequence[str]) -> int:
    """Returns the exit status: 0, 1 for what cannot be read or written, 2 for the command line."""
    if len(argv) != 2:
        tell(str(__doc__))
        return 2
    path, count = argv
    if not count.isdecimal() or len(count) > MOST_DIGITS or int(count) == 0:
        raise UsageError(f"COUNT {count}: must be a whole number from 1 to {10**MOST_DIGITS - 1}")
    try:
        # A line ends at a line feed and nowhere else.
        with open(path, encoding="utf-8", newline="\n") as file:
            text = Text.of(file)
    except (OSError, UnicodeDecodeError) as error:
        raise InferenceError(f"{path}: cannot be read ({error})") from error
    if not text.words:
        raise InferenceError(f"{path}: holds no sentence; name a text")
    made = 0
    for line in recombine(text, int(count)):
        put(f"{line}\n")
        made += 1
    if made < int(count):
        tell(f"{PROG}: {made} of {count} were made, and no others found; give more text")
    return 0
