"""scripts/symbols.py: which symbols of a list are in a translation, and the list itself."""

import json
import sys
from pathlib import Path

import pytest
from scripts_here import SCRIPTS, load_script, run

LIST = SCRIPTS.parent / "data" / "symbols.tsv"
COMMAND = sys.executable, SCRIPTS / "symbols.py"

symbols = load_script("symbols")


def item(*required: str) -> "symbols.Item":
    return symbols.Item("A sentence.", list(required))


@pytest.mark.parametrize(
    ("required", "translation", "missing"),
    [
        (["50%"], "Etwa 50 % der Läden.", []),
        (["50%"], "Etwa 5 % der Läden.", ["50%"]),
        (["$", "20"], "20 Dollar", ["$"]),
        ([">", ">"], "Netz > Mehr", [">"]),
        (["/", "//a"], "siehe //a", ["/"]),
        (["a", "b"], "a\tb", []),
        (["12"], "1 und 2", ["12"]),
    ],
)
def test_strings_are_found_whatever_spaces_there_are_and_each_as_often_as_asked_for(
    required: list[str], translation: str, missing: list[str]
) -> None:
    assert symbols.missing_strings(item(*required), translation) == missing


def test_letters_digits_and_ordinary_punctuation_are_no_symbols() -> None:
    wanted, found = symbols.found_symbols(item("http://a.b/c_1", "(§5)", "§"), "§ 5 / c_1 //")

    assert wanted == {"/": 3, "_": 1, "§": 2}
    assert found == {"/": 3, "_": 1, "§": 1}


def test_figures_of_two_sentences(tmp_path: Path) -> None:
    listed, translation = tmp_path / "list.tsv", tmp_path / "de"
    listed.write_text("Half: 50%.\t50%\nIt is $5.\t$ 5\n", encoding="utf-8")
    translation.write_text("Halb: 50 %.\nEs sind 5.\n", encoding="utf-8")

    figures = tmp_path / "figures.json"
    done = run(*COMMAND, "--missing", listed, translation, "--json", figures)

    assert done.stdout.splitlines() == [
        "$",
        "  It is $5.",
        "  Es sind 5.",
        "symbols: 1 of 2 (50.0 %)",
        "strings: 2 of 3 (66.7 %)",
        "sentences: 1 of 2 (50.0 %)",
        "% 1/1  $ 0/1",
    ]
    assert json.loads(figures.read_text("utf-8")) == {
        "symbols": {"found": 1, "of": 2},
        "strings": {"found": 2, "of": 3},
        "sentences": {"found": 1, "of": 2},
        "each": {"%": {"found": 1, "of": 1}, "$": {"found": 0, "of": 1}},
    }


@pytest.mark.parametrize(
    ("listed", "translation", "message"),
    [
        (b"no tab\n", b"x\n", "list.tsv:1: give a sentence, a tab"),
        (b"a\t \n", b"x\n", "list.tsv:1: give a sentence, a tab"),
        (b"a\t%\n", b"x\ny\n", "list.tsv has 1 lines and"),
        (b"a\t%\n", b"\xff\n", "de is not UTF-8"),
        (b"a\t%\n", None, "de cannot be read"),
    ],
)
def test_what_cannot_be_compared_is_said(
    tmp_path: Path, listed: bytes, translation: "bytes | None", message: str
) -> None:
    (tmp_path / "list.tsv").write_bytes(listed)
    if translation is not None:
        (tmp_path / "de").write_bytes(translation)

    done = run(*COMMAND, tmp_path / "list.tsv", tmp_path / "de", status=1)

    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_the_list_has_200_sentences_each_with_what_it_asks_for() -> None:
    items = symbols.items_of(LIST)

    assert len(items) == 200
    assert len({item.sentence for item in items}) == 200
    assert [item for item in items if symbols.missing_strings(item, item.sentence)] == []
