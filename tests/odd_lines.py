"""Lines that a translator may be given, and that no corpus has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

CONTROLS = [chr(code) for code in (*range(10), 11, 12, *range(14, 32), *range(127, 160))]
"""Control characters that end no line."""
SPACES = "\t\x0b\x0c\x1f\x85\xa0\u2003\u2028\u3000"
"""Nine characters that Python strips from the ends of a line."""
SCRIPTS = [
    "Привет мир",
    "日本語の文",
    "שלום עולם",
    "ไทย",
    "🙂👩‍👩‍👧🏽",
    "e\u0301a\u0308",
    "ſﬁﬀ",
    "\u202eabc",
]
MARKS = ["<unk>", "</s>", "<pad>", "<s>", "@@", "a@@", "@-@", "&amp;", "&#124;", "▁", "|||"]

Make = Callable[[Random, Sequence[str]], str]


def _words(draw: Random, words: Sequence[str], most: int = 12) -> list[str]:
    return draw.choices(words, k=draw.randint(1, most))


def _mixed(draw: Random, words: Sequence[str], others: Sequence[str]) -> str:
    parts = _words(draw, words) + draw.choices(others, k=draw.randint(1, 4))
    draw.shuffle(parts)
    return " ".join(parts)


def _inside(draw: Random, words: Sequence[str], others: Sequence[str]) -> str:
    return "".join(word + draw.choice([" ", *others]) for word in _words(draw, words))


KINDS: tuple[Make, ...] = (
    lambda draw, words: _mixed(draw, words, SCRIPTS),
    lambda draw, words: _mixed(draw, words, MARKS),
    lambda draw, words: _inside(draw, words, CONTROLS),
    lambda draw, words: _inside(draw, words, SPACES),
    lambda draw, words: draw.choice(SPACES) + " ".join(_words(draw, words)) + draw.choice(SPACES),
    lambda draw, words: draw.choice(words),
    lambda draw, words: draw.choice("?!.,;:'\"()%&@#0aÄ"),
    lambda draw, words: draw.choice("?!.-_*=") * draw.randint(2, 60),
    lambda draw, words: " ".join([draw.choice(words)] * draw.randint(5, 60)),
    lambda draw, words: "".join(_words(draw, words, 30)),
    lambda draw, words: " ".join(_words(draw, words, 90)),
    lambda draw, words: " ".join(_words(draw, words)).upper(),
    lambda draw, words: " ".join(_words(draw, words)).swapcase()[::-1],
    lambda draw, words: " ".join(str(draw.randrange(10 ** draw.randint(1, 15))) for _ in range(9)),
    lambda draw, words: f"https://{'/'.join(_words(draw, words))}?q={draw.random()}&amp;x=<b>",
    lambda draw, words: "".join(chr(draw.randrange(0x20, 0x3000)) for _ in range(25)),
)


def odd_lines(words: Sequence[str], count: int, seed: int = 0) -> list[str]:
    """So many lines, of each kind about as many; none is blank, and none holds a line feed.

    Args:
        words: what ordinary parts are made of.
    """
    draw = Random(seed)
    made = (KINDS[number % len(KINDS)](draw, words) for number in range(count))
    return [line if line.strip() else "." for line in made]
