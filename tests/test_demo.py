"""``scripts/demo.py``: what it shows, and what it refuses."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from scripts_here import load_script

ROOT = Path(__file__).resolve().parent.parent
SMALL = ["--model", str(ROOT / "checkpoints/multi30k.en-de"), "--engine", "eager"]
"""The smaller of the pairs."""


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [*sys.path])
    return load_script("demo")


def test_translations_and_a_table(
    demo: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--precision", "float32", "--lines", "2", "--repeats", "1"]
    monkeypatch.setattr(sys, "argv", ["demo.py", *SMALL, *flags])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"A dog runs.\n\n")))
    monkeypatch.setattr(demo.select, "select", lambda *_: ([sys.stdin], [], []))
    assert demo.main() == 0
    output = capsys.readouterr().out
    assert output.count(" tokens in ") == 3  # two examples, and what was typed
    assert max(map(len, output.splitlines())) <= 80
    rows = [line for line in output.splitlines() if line.endswith("/2")]
    assert [row[2:20].strip() for row in rows] == [
        demo.BEAM,
        demo.BASELINE,
        demo.GREEDY,
        demo.STRICT,
    ]
    for row in rows[1:]:
        assert row.endswith("2/2")
    # The translations come first, and each is shown as it is put out.
    assert output.index(" tokens in ") < output.index(rows[0])
    assert "specdec by eager in float32" in " ".join(output.split())
    assert "specdec-make-pair VERIFIER SOURCES" in output.splitlines()[-2]


def test_of_the_greedy_loop_and_of_trees_each_counts_its_own(demo: Any) -> None:
    args = demo.parser().parse_args([*SMALL, "--precision", "float32", "--repeats", "1"])
    sources = demo.read_text(demo.text(args), 2, "--source")
    ours = demo.load(args, strategy="specdec", controller=demo.Tree())
    found = demo.measure(args, ours, sources)
    assert found[demo.GREEDY].accepted is None
    assert found[demo.STRICT].accepted > 2
    assert all(len(one.seconds) == 1 and min(one.seconds) > 0 for one in found.values())


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ([], "example.en"),
        (["--model", "checkpoints/multi30k.en-de/"], "captions.en"),
        (["--source", "a"], "a"),
    ],
)
def test_the_text_is_one_that_the_pair_knows(demo: Any, flags: list[str], name: str) -> None:
    assert Path(demo.text(demo.parser().parse_args(flags))).name == name


def test_what_was_drafted_is_marked(demo: Any) -> None:
    """In the translation as it is put out: subwords joined, within steps and across them, without
    the tokenizer's blanks and escapes."""
    steps = [
        (["&quot;", "ein", "gro@@"], True),
        (["\u00dfer"], False),
        (["Hund", "&amp;", "l\u00e4uft"], True),
        ([".", demo.END], False),
    ]
    assert demo.wrapped('"ein gro\u00dfer Hund & l\u00e4uft.', steps) == (
        '  ["ein gro]\u00dfer [Hund & l\u00e4uft].'
    )
    assert demo.wrapped("so", [([], True), (["so"], False), ([demo.END], True)]) == "  so"
    pieces = [(["\u2581So", "\u2581i"], True), (["st"], False)]
    assert demo.wrapped("So ist", pieces) == "  [So i]st"


def test_a_translation_whose_letters_were_changed_is_shown_without_marks(demo: Any) -> None:
    assert demo.wrapped("ein Hund", [(["EIN", "Hund"], True)]) == "  ein Hund"


def test_it_is_said_for_how_long_something_goes_on(
    demo: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with demo.doing("waiting", pause=0.01):
        demo.time.sleep(0.1)
    first, *ticks = capsys.readouterr().err.splitlines()
    assert first == "  waiting"
    assert set(ticks) == {"    0 s"}


@pytest.mark.parametrize(("flag", "value"), [("--repeats", "-3"), ("--lines", "0")])
def test_counts_that_are_none_are_refused(
    demo: Any,
    flag: str,
    value: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["demo.py", flag, value])
    assert demo.main() == 1
    assert capsys.readouterr().err == f"demo.py: {flag} {value}: must be at least 1\n"
