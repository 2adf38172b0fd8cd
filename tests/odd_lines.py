"""Lines that a translator may be given, and that no corpus has."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

CONTROLS = [chr(code) for code in (*range(10), 11, 12, *range(14, 32), *range(127, 160))]
"""Control characters that end no line."""
SPACES = "\t\x0b\x0c\x1f\x85\xa0\u2003\u2028\u3000"
"""Nine characters that Python strips from the ends of a line."""
SCRIPTS = [
    *("Привет мир", "日本語の文", "שלום עולם", "ไทย", "🙂👩‍👩‍👧🏽", "e\u0301a\u0308", "ſﬁﬀ"),
    *("\u202eabc", "?!.,;:'\"()%&@#0aÄ", "-_*=" * 20, "https://a/b?q=0.5&amp;x=<b>", "9" * 15),
]
MARKS = ["<unk>", "</s>", "<pad>", "<s>", "@@", "a@@", "@-@", "&amp;", "&#124;", "▁", "|||"]
KINDS = (SCRIPTS, MARKS, CONTROLS, SPACES)


def odd_lines(words: Sequence[str], seed: int = 0) -> list[str]:
    """Words with odd ones between them or within them; a word alone, over and over, and many."""
    draw = Random(seed)
    lines = []
    for kind in KINDS:
        mixed = draw.choices(words, k=9) + draw.choices(kind, k=3)
        lines.append(" ".join(draw.sample(mixed, 12)))
        lines.append("".join(word + draw.choice([" ", *kind]) for word in draw.choices(words, k=9)))
        lines.append(" ".join(draw.choices(words, k=9)).swapcase()[::-1])
    return [*lines, words[0], " ".join(words[:1] * 50), "".join(words[:30]), " ".join(words[:90])]
