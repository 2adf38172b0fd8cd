#!/usr/bin/env python3
"""Make training pairs in which symbols are copied from the source to the target.

    scripts/symbol_lines.py train.en train.de OUT --pairs 60000 --numbers 40000

Of aligned raw text it writes OUT.en and OUT.de: pairs that have the same symbols (%, $, @, brackets
and so on) on both sides, at most 3,000 for each symbol; and ordinary pairs with symbols added in
the same place of both sides. At least half is of this second kind. With --numbers it also writes
pairs whose numbers, the same on both sides, are exchanged for others.
"""

from __future__ import annotations

import random
import re
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from texts import aligned

from specdec_plugins.files.command import Parser, command, positive
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.output import check_paths, whole_file

Pair = tuple[str, str]

SYMBOLS = frozenset("%$€£@#=<>[]{}|\\^~&*+/_°§²³©±")
MAX_EACH = 3_000
NUMBER = re.compile(r"(?<![\w.,])\d{1,4}(?:[.,]\d{1,2})?(?![\w.,]*\d)(?![\w%])")
WORD = re.compile(r"\b[a-z]{3,9}\b")
AT_NUMBER: list[Pair] = [
    *[("N%", "N %"), ("$N", "N $")] * 4,
    *[("€N", "N €"), ("£N", "N £"), ("$ N million", "N Millionen $")],
    *[(f, f) for f in ("N °C", "N m²", "#N", "§ N", "~N", "[N]", "N+", "< N", "> N", "= N")],
]
"""Forms of a number N, in the source and in the target."""
THINGS = r"""
{a}@{b}.{end}  {a}.{b}@{c}.{end}  http://www.{a}.{end}/{b}  https://{a}.{end}/{b}?{c}={n}
www.{a}-{b}.{end}  /{a}/{b}/{c}.txt  C:\{a}\{b}  \\{a}\{b}  ~/{a}/{b}  {a}/{b}  --{a}={b}  {a}_{b}
#{a}  #{n}  @{a}  @{a}{n}  <{a}>  <{a}> {b} </{a}>  {{{a}}}  ${{{a}}}  *{a}*  [{n}]  [{a}]
[{n}, {m}]  {a}[{n}]  {a}={n}  {a} = {n}  {a} < {n}  {a} > {n}  {n} < {a} < {m}  {a}^{n}
{a} > {b} > {c}  {a} | {b}  {a} & {b}  {n} + {m} = {sum}  {n} * {m} = {times}  {n} / {m}  {n}%  ${n}
€{n}  ± {n}  ~{n}  {n} m³  {n} °C  +{m} {n}  © {m} {a}
"""
"""Addresses, paths, tags and formulas, of words a, b, c and numbers n, m; two blanks apart."""
ADDED = ["{0} ({1}){2}", "{0}: {1}{2}", "{0}: {1}", "{1}: {0}{2}", "{1} {0}{2}", "{0} {1}{2}"]
"""Forms of a sentence (0) with a thing (1) and its full stop (2)."""


def symbols_of(text: str) -> Counter[str]:
    """Return how often each symbol is in a text."""
    return Counter(character for character in text if character in SYMBOLS)


def natural(pairs: list[Pair], draw: random.Random) -> list[Pair]:
    """Return the pairs whose sides have the same symbols, none more than MAX_EACH times."""
    taken = []
    seen = Counter[str]()
    for pair in draw.sample(pairs, len(pairs)):
        symbols, other = map(symbols_of, pair)
        worded = sum(map(str.isalpha, pair[0])) >= len(pair[0]) / 2
        is_seldom = all(seen[symbol] < MAX_EACH for symbol in symbols)
        if worded and symbols and symbols == other and is_seldom:
            seen.update(symbols.keys())
            taken.append(pair)
    return taken


def at_number(pair: Pair, draw: random.Random) -> Pair:
    """Add a sign to a number that both sides have once, if there is one."""
    first, second = (NUMBER.findall(side) for side in pair)
    common = [number for number in first if first.count(number) == second.count(number) == 1]
    if not common:
        return pair
    number = draw.choice(common)
    forms = draw.choice(AT_NUMBER)
    alone = re.compile(rf"(?<![\w.,]){re.escape(number)}(?![\w.,]*\d)")
    pieces = (alone.split(side, 1) for side in pair)
    source, target = (form.replace("N", number).join(p) for form, p in zip(forms, pieces))
    return source, target


def added(pair: Pair, draw: random.Random) -> Pair:
    """Add an address, a path, a tag or a formula to both sides."""
    words = WORD.findall(pair[0]) or ["name"]
    n = draw.randint(0, 99)
    m = draw.randint(1, 2030)
    parts = {letter: draw.choice(words) for letter in "abc"}
    parts["end"] = draw.choice(["com", "org", "de", "net", "co.uk", "eu"])
    thing = draw.choice(re.split(r"  |\n", THINGS.strip()))
    thing = thing.format(n=n, m=m, sum=n + m, times=n * m, **parts)
    first, second = map(str.rstrip, pair)
    stop = ""
    if first[-1] in ".!?" and second[-1] == first[-1]:
        stop = first[-1]
    form = draw.choice(ADDED)
    sides = (side.removesuffix(stop) for side in (first, second))
    source, target = (form.format(side, thing, stop) for side in sides)
    return source, target


def derived(pairs: list[Pair], count: int, draw: random.Random) -> list[Pair]:
    """Return ordinary pairs with symbols added, the same ones on both sides."""
    plain = [pair for pair in pairs if not symbols_of("".join(pair))]
    numbered = [pair for pair in plain if NUMBER.search(pair[0])]
    ways = [(change, some) for change, some in ((at_number, numbered), (added, plain)) if some]
    if not ways:
        raise InferenceError("all pairs have symbols: none is left to add some to")
    made: list[Pair] = []
    while len(made) < count:
        change, choices = draw.choice(ways)
        source, target = change(draw.choice(choices), draw)
        if (symbols := symbols_of(source)) and symbols == symbols_of(target):
            made.append((source, target))
    return made


def renumbered(pairs: list[Pair], count: int, draw: random.Random) -> list[Pair]:
    """Return pairs with other numbers of as many digits, the same ones on both sides."""
    made: list[Pair] = []
    for pair in draw.sample(pairs, len(pairs)):
        numbers = [Counter(re.findall(r"\d+", side)) for side in pair]
        if len(made) == count or not numbers[0] or numbers[0] != numbers[1]:
            continue
        others = {}
        for number in numbers[0]:
            lowest = 10 ** (len(number) - 1)
            others[number] = str(draw.randrange(lowest, 10 * lowest))
        source, target = (
            re.sub(r"\d+", lambda m, others=others: others[m[0]], side) for side in pair
        )
        made.append((source, target))
    return made


@command()
def main(argv: Sequence[str]) -> None:
    """Write the pairs that the module's text describes."""
    parser = Parser(__doc__)
    parser.add_argument("texts", type=Path, nargs=2, metavar="TEXT")
    parser.add_argument("out", metavar="OUT")
    parser.add_argument("--pairs", type=positive, default=60_000)
    parser.add_argument("--numbers", type=int, default=0)
    args = parser.parse_args(argv)
    outputs = [Path(f"{args.out}{path.suffix}") for path in args.texts]
    named = [(f"OUT of {text}:", path) for text, path in zip(args.texts, outputs, strict=True)]
    check_paths(named, [("TEXT", path) for path in args.texts])
    draw = random.Random(1)
    pairs = []
    for pair in zip(*aligned(*args.texts), strict=True):
        short, long = sorted(len(side.split()) for side in pair)
        if short >= 3 and long <= 40 and long <= 1.6 * short + 3:
            pairs.append(pair)
    lines = natural(pairs, draw)[: args.pairs // 2]
    lines += derived(pairs, args.pairs - len(lines), draw)
    numbered = renumbered(pairs, args.numbers, draw)
    if len(numbered) < args.numbers:
        raise InferenceError(f"--numbers {args.numbers}: {len(numbered)} pairs have numbers")
    lines += numbered
    draw.shuffle(lines)
    with ExitStack() as stack:
        files = [stack.enter_context(whole_file(path)) for path in outputs]
        for pair in lines:
            for file, side in zip(files, pair, strict=True):
                file.write(f"{side}\n".encode())


if __name__ == "__main__":
    sys.exit(main())
