#!/usr/bin/env python3
"""Count the symbols that a translation should have and has.

    cut -f 1 data/symbols.tsv | specdec-translate PAIR >symbols.de
    scripts/symbols.py data/symbols.tsv symbols.de

A line of the first file is a sentence and, after a tab, the strings that its translation must
contain; spaces do not count ("50%" is in "50 %"). Symbols are the characters of these strings that
are neither letters, digits nor ordinary punctuation. What is missing is printed with its sentence.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

from texts import aligned

from specdec_plugins.files.command import Parser, command, put, tell


def symbols_of(text: str) -> Counter[str]:
    """Return how often each symbol is in a text."""
    symbols = [c for c in text if not (c.isalnum() or c.isspace() or c in ".,:;!?'\"()-")]
    return Counter(symbols)


def missing_strings(required: list[str], translation: str) -> list[str]:
    """Return the strings that a translation lacks; asked for twice, one must be there twice."""
    missing = []
    rest = "".join(translation.split())
    # The longest first: a short string must not match inside a longer one.
    for string in sorted(required, key=len, reverse=True):
        if string not in rest:
            missing.append(string)
        rest = rest.replace(string, "\n", 1)
    return missing


@command()
def main(argv: Sequence[str]) -> None:
    """Compare a translation with a list, and print how much of it is there."""
    parser = Parser(__doc__)
    parser.add_argument("list", metavar="LIST", help="sentences and the strings they require")
    parser.add_argument("translations", metavar="TRANSLATIONS", help="a line for each of LIST")
    args = parser.parse_args(argv)
    listed, translations = aligned(args.list, args.translations)
    symbols = Counter[str]()
    present = Counter[str]()
    strings = 0
    faults = []
    for line, translation in zip(listed, translations, strict=True):
        sentence, _, required = line.partition("\t")
        symbols += symbols_of(required)
        present += symbols_of(required) & symbols_of(translation)
        strings += len(required.split())
        if missing := missing_strings(required.split(), translation):
            faults.append(missing)
            tell(f"{' '.join(missing)}\n  {sentence}\n  {translation}")
    lacking = sum(map(len, faults))
    shares = [f"{name} {present[name]}/{count}" for name, count in symbols.most_common()]
    put(
        f"symbols: {present.total()} of {symbols.total()}\n"
        f"strings: {strings - lacking} of {strings}\n"
        f"sentences: {len(listed) - len(faults)} of {len(listed)}\n"
        f"{'  '.join(shares)}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
