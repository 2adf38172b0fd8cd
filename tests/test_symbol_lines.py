"""scripts/symbol_lines.py: training pairs whose symbols are the same on both sides."""

import random
import sys
from pathlib import Path

import pytest
from scripts_here import SCRIPTS, load_script, run

COMMAND = sys.executable, SCRIPTS / "symbol_lines.py"
ENGLISH = [
    "We saw 12 big dogs there.",
    "Yes, he came.",
    "A room costs 5% more now.",
    "It is 5% of 7 here.",
]
GERMAN = [
    "Wir sahen dort 12 große Hunde.",
    "Ja, er kam.",
    "Ein Zimmer kostet 5 % mehr.",
    "Es sind 5 von 7.",
]

lines = load_script("symbol_lines")


def write(folder: Path, english: list[str], german: list[str]) -> list[str]:
    for name, text in (("a.en", english), ("a.de", german)):
        (folder / name).write_text("\n".join(text) + "\n", "utf-8")
    return [str(folder / "a.en"), str(folder / "a.de"), str(folder / "out")]


def test_every_pair_has_the_same_symbols_on_both_sides(tmp_path: Path) -> None:
    done = run(*COMMAND, *write(tmp_path, ENGLISH, GERMAN), "--pairs", 200, status=0)
    assert "1 pairs found, 199 made" in done.stderr
    sides = [(tmp_path / f"out.{side}").read_text("utf-8").splitlines() for side in ("en", "de")]
    assert len(sides[0]) == len(sides[1]) == 200
    for first, second in zip(*sides):
        assert lines.symbols_of(first) == lines.symbols_of(second)
    # The others are in round brackets, or have a number or an address without a symbol.
    assert sum(bool(lines.symbols_of(first)) for first in sides[0]) > 150


def test_a_seed_decides_what_is_written() -> None:
    pairs = list(zip(ENGLISH, GERMAN))
    made = [lines.derived(pairs, 40, random.Random(seed)) for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2]


def test_a_symbol_is_not_taken_more_often_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MOST_OF_ONE", 3)
    pairs = [(f"A room costs {n} % more.", f"Es kostet {n} % mehr.") for n in range(10)]
    assert len(lines.natural(pairs, random.Random(1))) == 3


def test_a_currency_goes_where_each_language_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "AT_NUMBER", [("$N", "N $")])
    pair = lines.at_number((ENGLISH[0], GERMAN[0]), random.Random(1))
    assert pair == ("We saw $12 big dogs there.", "Wir sahen dort 12 $ große Hunde.")


@pytest.mark.parametrize(
    ("english", "german", "message"),
    [(ENGLISH, GERMAN[1:], "4 lines and"), (ENGLISH[1:2], GERMAN[1:2], "too little text")],
)
def test_what_cannot_be_used_is_refused(
    tmp_path: Path, english: list[str], german: list[str], message: str
) -> None:
    done = run(*COMMAND, *write(tmp_path, english, german), status=1)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out.en").exists()
