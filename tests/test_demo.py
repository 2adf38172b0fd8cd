"""``scripts/demo.py``: translations, their marks, and the table."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from helpers.runs.scripts_here import load_script

ROOT = Path(__file__).resolve().parent.parent
SMALL = ["--model", str(ROOT / "checkpoints/multi30k.en-de"), "--engine", "eager"]


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [*sys.path])
    return load_script("demo")


def test_translations_and_a_table(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--precision", "float32", "--lines", "2", "--repeats", "1"]
    monkeypatch.setattr(sys, "argv", ["demo.py", *SMALL, *flags])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"A dog runs.\n\n")))
    monkeypatch.setattr(demo.select, "select", lambda *_: ([sys.stdin], [], []))
    assert demo.main() == 0
    output = capsys.readouterr().out
    assert output.count(" tokens in ") == 3  # two examples, and what was typed
    rows = [line for line in output.splitlines() if line.endswith("/2")]
    assert [row[2:25].strip() for row in rows] == list(demo.SYSTEMS)[1:5]
    assert all(row.endswith("2/2") for row in rows)
    assert re.search(r"^  Timing 5 ways to decode takes about \d+ s\.$", output, re.MULTILINE)
    assert max(map(len, output.splitlines())) <= 80
    # Of the drafts alone: without drafts it is 1.
    assert float(re.findall(r"([\d.]+)\s+tokens\s+a\s+step", output)[0]) > 3


@pytest.mark.parametrize(
    ("text", "steps", "expected"),
    [
        (
            '"ein großer Hund & läuft.',
            [(["&quot;", "ein", "gro@@"], "ßer"), (["Hund", "&amp;", "läuft"], ".")],
            '["ein gro]ßer [Hund & läuft].',
        ),
        ("so", [([], "so"), (["</s>"], None)], "so"),
    ],
)
def test_drafted_text_is_marked(
    demo: ModuleType, text: str, steps: list[tuple[list[str], str | None]], expected: str
) -> None:
    traced = [SimpleNamespace(drafted=d, accepted=len(d), bonus=bonus) for d, bonus in steps]
    translation = SimpleNamespace(text=text, trace=SimpleNamespace(steps=traced))
    marks = str.maketrans({demo.BEGIN: "[", demo.FINISH: "]"})
    assert demo.marked(translation).translate(marks) == expected
