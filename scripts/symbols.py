#!/usr/bin/env python3
"""How many of the symbols that a translation should have are in it.

    scripts/symbols.py data/symbols.tsv runs/symbols.de

The first file has a sentence a line and, after a tab, the strings that its translation must
contain, separated by spaces. The second file has the translations, a line each. Spaces do not
count: "50%" is found in "50 %". What is asked for twice must be there twice. Four figures are
printed:

- symbols: those characters of the strings that are neither letters, digits nor ordinary
  punctuation, and are as often in the translation;
- strings that are there as a whole;
- sentences whose strings are all there;
- of each symbol, how many are there.

With --missing each sentence with a missing string is printed, too; --json FILE writes the figures
there. The sentences to translate are the first column: cut -f 1 data/symbols.tsv.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple, NoReturn

PUNCTUATION = frozenset(".,:;!?'\"()-")


Figures = dict[str, dict[str, int]]


class Item(NamedTuple):
    """A sentence and the strings that its translation must contain."""

    sentence: str
    required: list[str]


def fail(message: str) -> NoReturn:
    """End with a message.

    Raises:
        SystemExit: always.
    """
    sys.exit(f"symbols.py: {message}")


def lines_of(path: Path) -> list[str]:
    """The lines of a UTF-8 file without their ends."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        fail(f"{path} cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        fail(f"{path} is not UTF-8 ({error.reason} at byte {error.start})")
    return text.removesuffix("\n").split("\n")


def items_of(path: Path) -> list[Item]:
    """The sentences of a list, each with its strings."""
    items = []
    for number, line in enumerate(lines_of(path), 1):
        sentence, tab, required = line.partition("\t")
        if not tab or not required.split():
            fail(f"{path}:{number}: give a sentence, a tab and what its translation must contain")
        items.append(Item(sentence, required.split()))
    return items


def squeezed(text: str) -> str:
    """The text without white space."""
    return "".join(text.split())


def is_symbol(character: str) -> bool:
    """Whether this is neither a letter, a digit, white space nor ordinary punctuation."""
    return not (character.isalnum() or character.isspace() or character in PUNCTUATION)


def found_symbols(item: Item, translation: str) -> tuple[Counter[str], Counter[str]]:
    """The symbols that the strings have, and how many of each the translation has of them."""
    wanted = Counter(filter(is_symbol, "".join(item.required)))
    return wanted, wanted & Counter(translation)


def missing_strings(item: Item, translation: str) -> list[str]:
    """The strings that the translation lacks."""
    rest = squeezed(translation)
    missing = []
    # The longest first, so that a short one is not found inside of a longer one that is asked for.
    for string in sorted(item.required, key=len, reverse=True):
        before, there, after = rest.partition(string)
        if there:
            rest = f"{before}\n{after}"
        else:
            missing.append(string)
    return missing


def share(found: int, of: int) -> str:
    """A count, what it is of, and its percentage."""
    return f"{found} of {of} ({100 * found / of:.1f} %)" if of else "none"


def figures(items: list[Item], translations: list[str]) -> tuple[Figures, Figures]:
    """How many symbols, strings and sentences are found, of how many; and each symbol."""
    wanted: Counter[str] = Counter()
    found: Counter[str] = Counter()
    missing = [missing_strings(item, line) for item, line in zip(items, translations)]
    for item, line in zip(items, translations):
        these, there = found_symbols(item, line)
        wanted += these
        found += there
    strings = sum(len(item.required) for item in items)
    whole = {
        "symbols": {"found": found.total(), "of": wanted.total()},
        "strings": {"found": strings - sum(map(len, missing)), "of": strings},
        "sentences": {"found": missing.count([]), "of": len(items)},
    }
    return whole, {one: {"found": found[one], "of": n} for one, n in wanted.most_common()}


def main() -> None:
    """Compare a translation with a list."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("list", type=Path, metavar="LIST")
    parser.add_argument("translation", type=Path, metavar="TRANSLATION")
    parser.add_argument("--missing", action="store_true", help="print what is missing where")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    args = parser.parse_args()
    items, translations = items_of(args.list), lines_of(args.translation)
    if len(items) != len(translations):
        fail(f"{args.list} has {len(items)} lines and {args.translation} {len(translations)}")
    if args.missing:
        for item, line in zip(items, translations):
            if missing := missing_strings(item, line):
                print(f"{' '.join(missing)}\n  {item.sentence}\n  {line}")
    whole, each = figures(items, translations)
    for name, counts in whole.items():
        print(f"{name}: {share(**counts)}")
    print("  ".join(f"{one} {n['found']}/{n['of']}" for one, n in each.items()))
    if args.json:
        text = json.dumps({**whole, "each": each}, ensure_ascii=False, indent=2)
        args.json.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
