"""``scripts/demo.py``: what it shows, and what it refuses."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from scripts_here import load_script

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [*sys.path])
    return load_script("demo")


def test_translations_and_a_table(
    demo: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--engine", "eager", "--precision", "float32", "--lines", "2", "--repeats", "1"]
    monkeypatch.setattr(sys, "argv", ["demo.py", *flags])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"A dog runs.\n\n")))
    monkeypatch.setattr(demo.select, "select", lambda *_: ([sys.stdin], [], []))
    assert demo.main() == 0
    output = capsys.readouterr().out
    assert output.count(" tokens in ") == 3  # two examples, and what was typed
    assert max(map(len, output.splitlines())) <= 80
    rows = [line for line in output.splitlines() if line.endswith("/2")]
    assert [row[2:17].strip() for row in rows] == list(demo.SYSTEMS)
    for name in ("AR (ours)", "specdec strict"):
        (row,) = (row for row in rows if row[2:].startswith(name))
        assert row.endswith("2/2")
    assert "ours by engine eager in float32" in " ".join(output.split())
    assert output.rstrip().endswith("specdec-make-pair --help")


def test_a_reference_of_another_length_is_refused(
    demo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in (("source", "A dog.\nA cat.\n"), ("reference", "Ein Hund.\n")):
        (tmp_path / name).write_text(text)
    flags = ["--source", str(tmp_path / "source"), "--reference", str(tmp_path / "reference")]
    monkeypatch.setattr(sys, "argv", ["demo.py", "--engine", "eager", *flags])
    assert demo.main() == 1
    assert "reference: has 1 lines, and --source" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ([], ("example.en", "example.de")),
        (["--model", "checkpoints/multi30k.en-de/"], ("captions.en", "captions.de")),
        (["--source", "a", "--reference", "b"], ("a", "b")),
    ],
)
def test_the_text_is_one_that_the_pair_knows(
    demo: Any, flags: list[str], names: tuple[str, str]
) -> None:
    found = demo.texts(demo.parser().parse_args(flags))
    assert tuple(Path(path).name for path in found) == names
    for flag in ("--source", "--reference"):
        with pytest.raises(ValueError, match="--source, --reference: give both"):
            demo.texts(demo.parser().parse_args([flag, "a"]))


def test_what_was_drafted_is_marked(demo: Any) -> None:
    """And subwords are joined, within steps and across them."""
    steps = [(["ein", "gro@@"], True), (["ßer"], False), (["Hund", "läuft"], True), (["."], False)]
    assert demo.wrapped(iter(steps)) == "  [ein gro]ßer [Hund läuft] ."
    assert demo.wrapped(iter([([], True), (["so"], False), ([demo.END], True)])) == "  so"


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
