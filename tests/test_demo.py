"""``scripts/demo.py``: what it refuses. What it shows is a table of times."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(("flag", "value"), [("--repeats", "-3"), ("--lines", "0")])
def test_counts_that_are_none_are_refused(
    flag: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = importlib.util.spec_from_file_location("demo", ROOT / "scripts" / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    monkeypatch.setattr(sys, "argv", ["demo.py", flag, value])
    assert demo.main() == 1
    assert capsys.readouterr().err == f"demo.py: {flag} {value}: must be at least 1\n"
