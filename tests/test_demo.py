"""``scripts/demo.py``: what it refuses. What it shows is a table of times."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("flag", ["--repeats", "--lines"])
@pytest.mark.parametrize("value", ["-3", "0"])
def test_counts_that_are_none_are_refused(flag: str, value: str) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "demo.py"), flag, value]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"demo.py: {flag} {value}: must be at least 1\n"
