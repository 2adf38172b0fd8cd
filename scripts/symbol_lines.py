#!/usr/bin/env python3
"""Training pairs in which symbols are copied from the source to the target.

    scripts/symbol_lines.py train.en train.de runs/symbols/raw --pairs 60000 --seed 1

Of aligned raw text it writes, to OUT.SRC and OUT.TGT after the names of the files read:

- pairs that have symbols (%, $, @, brackets and so on), the same ones on both sides, at most
  3,000 for each symbol, so that none drowns the others;
- ordinary pairs to which symbols are added on both sides in the same place: a currency or a
  percent sign at a number that both have, the whole in brackets or tags, a mark before it, an
  address, a path or a formula after it, or two short pairs joined by a sign. Half of what is
  written is of this kind.

Most text has too few symbols for a model to learn that they are to be copied. The sentences of
data/symbols.tsv, by which that is tested, are not read here.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

SYMBOLS = frozenset("%$€£@#=<>[]{}|\\^~&*+/_°§²³©±")
MOST_OF_ONE = 3_000
NUMBER = re.compile(r"(?<![\w.,])\d{1,4}(?:[.,]\d{1,2})?(?![\w.,]*\d)(?![\w%])")
WORD = re.compile(r"\b[a-z]{3,9}\b")

Pair = tuple[str, str]


def forms(text: str) -> list[str]:
    """The forms of a table, which has two blanks or a line's end between them."""
    return re.split(r"  |\n", text.strip())


AT_NUMBER: list[Pair] = [
    *[("N%", "N %"), ("$N", "N $")] * 4,
    *[(form, form) for form in forms("N °C  N m²  #N  § N  ~N  [N]  N+  < N  > N  = N")],
    *[("€N", "N €"), ("£N", "N £"), ("$ N million", "N Millionen $")],
]
"""What a number N becomes, in the source and in the target."""

THINGS = forms(r"""
{a}@{b}.{end}  {a}.{b}@{c}.{end}  http://www.{a}.{end}/{b}  https://{a}.{end}/{b}?{c}={n}
www.{a}-{b}.{end}  /{a}/{b}/{c}.txt  C:\{a}\{b}  \\{a}\{b}  ~/{a}/{b}  {a}/{b}  --{a}={b}  {a}_{b}
#{a}  #{n}  @{a}  @{a}{n}  <{a}>  <{a}> {b} </{a}>  {{{a}}}  ${{{a}}}  *{a}*  [{n}]  [{a}]
[{n}, {m}]  {a}[{n}]  {a}={n}  {a} = {n}  {a} < {n}  {a} > {n}  {n} < {a} < {m}  {a}^{n}
{a} > {b} > {c}  {a} | {b}  {a} & {b}  {n} + {m} = {sum}  {n} * {m} = {times}  {n} / {m}  {n}%  ${n}
€{n}  ± {n}  ~{n}  {n} m³  {n} °C  +{m} {n}  © {m} {a}
""")
"""Addresses, paths, tags, formulas: of words a, b, c, numbers n, m, and the end of an address."""

ADDED = ["{0} ({1}){2}", "{0}: {1}{2}", "{0}: {1}", "{1}: {0}{2}", "{1} {0}{2}", "{0} {1}{2}"]
"""Where a thing (1) is put in a sentence (0) with its full stop (2)."""

ENCLOSED = forms("""
[{0}]  ({0})  <{0}>  {{{0}}}  *{0}*  * {0}  *{0}  {0} *  > {0}  # {0}  + {0}  | {0} |
~ {0}  © {0}  [ {0} ]  <{word}>{0}</{word}>  <b> {0} </b>  <i>{0}</i>  {0} [sic]
""")
"""What both sides (0) of a pair are put into, with a word of the source."""


def symbols_of(text: str) -> Counter[str]:
    """How often each symbol is in the text."""
    return Counter(character for character in text if character in SYMBOLS)


def is_usable(pair: Pair) -> bool:
    """Return whether both sides are of ordinary length, and about as long as each other."""
    short, long = sorted(len(side.split()) for side in pair)
    return short >= 3 and long <= 40 and long <= 1.6 * short + 3


def natural(pairs: Sequence[Pair], draw: random.Random) -> list[Pair]:
    """The pairs whose sides have the same symbols, none more than MOST_OF_ONE times."""
    taken: list[Pair] = []
    seen: Counter[str] = Counter()
    for pair in draw.sample(pairs, len(pairs)):
        symbols = symbols_of(pair[0])
        letters = sum(map(str.isalpha, pair[0]))
        if not symbols or symbols != symbols_of(pair[1]) or letters < len(pair[0]) / 2:
            continue
        if min(seen[symbol] for symbol in symbols) < MOST_OF_ONE:
            seen.update(symbols.keys())
            taken.append(pair)
    return taken


def at_number(pair: Pair, draw: random.Random) -> Pair | None:
    """A sign at a number that both sides have once; None where there is no such number."""
    found = [NUMBER.findall(side) for side in pair]
    common = [one for one in found[0] if found[0].count(one) == found[1].count(one) == 1]
    if not common:
        return None
    number = draw.choice(common)
    place = re.compile(rf"(?<![\w.,]){re.escape(number)}(?![\w.,]*\d)")
    source, target = (form.replace("N", number) for form in draw.choice(AT_NUMBER))
    return place.sub(lambda _: source, pair[0], 1), place.sub(lambda _: target, pair[1], 1)


def thing(pair: Pair, draw: random.Random) -> str:
    """An address, a path, a tag or a formula, of words of the source and of numbers."""
    words = WORD.findall(pair[0]) or ["name"]
    n, m = draw.randint(0, 99), draw.randint(1, 2030)
    parts = {letter: draw.choice(words) for letter in "abc"}
    parts |= {"end": draw.choice(["com", "org", "de", "net", "co.uk", "eu"])}
    return draw.choice(THINGS).format(n=n, m=m, sum=n + m, times=n * m, **parts)


def added(pair: Pair, draw: random.Random) -> Pair:
    """A thing before, in brackets after, or after a colon at the end of both sides."""
    what = thing(pair, draw)
    first, second = (side.rstrip() for side in pair)
    stop = first[-1] if first[-1] in ".!?" and second[-1] == first[-1] else ""
    form = draw.choice(ADDED)
    return (
        form.format(first.removesuffix(stop), what, stop),
        form.format(second.removesuffix(stop), what, stop),
    )


def enclosed(pair: Pair, draw: random.Random) -> Pair:
    """Both sides whole in brackets, tags or stars, or after a mark."""
    word = draw.choice(WORD.findall(pair[0]) or ["b"])
    form = draw.choice(ENCLOSED)
    return form.format(pair[0], word=word), form.format(pair[1], word=word)


def joined(pair: Pair, other: Pair, draw: random.Random) -> Pair:
    """Two pairs with a sign between them on both sides."""
    sign = draw.choice("|=&></+*~\\^#")
    first, second = ([side.strip().rstrip(".") for side in one] for one in (pair, other))
    return f"{first[0]} {sign} {second[0]}", f"{first[1]} {sign} {second[1]}"


def derived(pairs: Sequence[Pair], number: int, draw: random.Random) -> list[Pair]:
    """Ordinary pairs with symbols added, a third of them at a number."""
    made: list[Pair] = []
    plain = [pair for pair in pairs if not symbols_of(pair[0]) and not symbols_of(pair[1])]
    short = [pair for pair in plain if len(pair[0].split()) <= 6]
    numbers = [pair for pair in plain if NUMBER.search(pair[0])]
    if not short or not numbers:
        sys.exit(
            "symbol_lines.py: too little text: no ordinary pair with a number, or no short one"
        )
    while len(made) < number:
        kind = draw.random()
        if kind < 0.4:
            changed = at_number(draw.choice(numbers), draw)
        elif kind < 0.75:
            changed = added(draw.choice(plain), draw)
        elif kind < 0.9:
            changed = enclosed(draw.choice(plain), draw)
        else:
            changed = joined(draw.choice(short), draw.choice(short), draw)
        if changed is not None and symbols_of(changed[0]) == symbols_of(changed[1]):
            made.append(changed)
    return made


def main() -> None:
    """Write the pairs that the module's text describes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, metavar="SOURCE")
    parser.add_argument("target", type=Path, metavar="TARGET")
    parser.add_argument("out", metavar="OUT", help="name of the files to write, without .SRC, .TGT")
    parser.add_argument("--pairs", type=int, default=60_000, metavar="N", help="how many to write")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    args = parser.parse_args()
    sides = [
        path.read_text("utf-8").removesuffix("\n").split("\n")
        for path in (args.source, args.target)
    ]
    if len(sides[0]) != len(sides[1]):
        counts = f"{len(sides[0])} lines and {args.target} {len(sides[1])}"
        sys.exit(f"symbol_lines.py: {args.source} has {counts}: give two files that are aligned")
    draw = random.Random(args.seed)
    pairs = [pair for pair in zip(*sides) if is_usable(pair)]
    found = natural(pairs, draw)[: args.pairs // 2]
    lines = found + derived(pairs, args.pairs - len(found), draw)
    draw.shuffle(lines)
    for side, path in enumerate((args.source, args.target)):
        with open(f"{args.out}{path.suffix}", "x", encoding="utf-8") as file:
            file.writelines(f"{pair[side]}\n" for pair in lines)
    print(f"{args.out}: {len(found)} pairs found, {len(lines) - len(found)} made", file=sys.stderr)


if __name__ == "__main__":
    main()
