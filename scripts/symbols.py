#!/usr/bin/env python3
"""Count the symbols that a translation should have and has.

    cut -f 1 data/symbols.tsv | specdec-translate PAIR >symbols.de
    scripts/symbols.py data/symbols.tsv symbols.de

A line of the first file is a sentence and, after a tab, the strings that its translation must
contain; spaces do not count ("50%" is in "50 %"). Symbols are the characters of these strings that
are neither letters, digits nor ordinary punctuation. --missing prints what is missing where.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

PUNCTUATION = frozenset(".,:;!?'\"()-")


def symbols_of(text: str) -> Counter[str]:
    """Return how often each symbol is in a text."""
    return Counter(c for c in text if not (c.isalnum() or c.isspace() or c in PUNCTUATION))


def missing_strings(required: list[str], translation: str) -> list[str]:
    """Return the strings that a translation lacks; one asked for twice must be there twice."""
    rest, missing = "".join(translation.split()), []
    # The longest first: a short string must not be found inside a longer one.
    for string in sorted(required, key=len, reverse=True):
        if string in rest:
            rest = rest.replace(string, "\n", 1)
        else:
            missing.append(string)
    return missing


def main() -> None:
    """Compare a translation with a list, and print how much of it is there."""
    paths = [word for word in sys.argv[1:] if word != "--missing"]
    if len(paths) != 2:
        sys.exit(str(__doc__))
    listed, translations = (Path(p).read_text("utf-8").strip("\n").split("\n") for p in paths)
    if len(listed) != len(translations):
        sys.exit(f"symbols.py: {paths[0]} and {paths[1]} differ in number of lines")
    symbols, there = Counter[str](), Counter[str]()
    strings = absent = whole = 0
    for line, translation in zip(listed, translations):
        sentence, _, required = line.partition("\t")
        missing = missing_strings(required.split(), translation)
        symbols += symbols_of(required)
        there += symbols_of(required) & symbols_of(translation)
        strings += len(required.split())
        absent += len(missing)
        whole += not missing
        if missing and "--missing" in sys.argv:
            print(f"{' '.join(missing)}\n  {sentence}\n  {translation}")
    print(f"symbols: {there.total()} of {symbols.total()}")
    print(f"strings: {strings - absent} of {strings}")
    print(f"sentences: {whole} of {len(listed)}")
    print("  ".join(f"{name} {there[name]}/{n}" for name, n in symbols.most_common()))


if __name__ == "__main__":
    main()
