"""Standard streams that are closed, full, or read by nobody."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "specdec_plugins"
PROGRAM = """
import os, sys, types

# The room alone: to import all of the package takes seconds.
sys.modules["specdec_plugins"] = types.ModuleType("specdec_plugins")
sys.modules["specdec_plugins"].__path__ = [sys.argv[1]]

from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.streams import open_standard_streams, put, tell
open_standard_streams()
file = os.open(os.devnull, os.O_RDONLY)
tell("told")
try:
    put("result\\n")
except InferenceError as error:
    tell(error)
    sys.exit(1)
except BrokenPipeError:
    sys.exit(0)
sys.exit(0 if file > 2 else 9)
"""


def run(redirections: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", f'"$0" -c "$1" "$2" {redirections}']
    command += [sys.executable, PROGRAM, str(PACKAGE)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("redirections", "status", "out", "err"),
    [
        ("<&- >&- 2>&-", 0, "", ""),
        ("2>/dev/full", 0, "result\n", ""),
        (
            ">/dev/full",
            1,
            "",
            "told\nstandard output: cannot be written to (No space left on device); make room, "
            "or send it elsewhere\n",
        ),
        ("| true", 0, "", "told\n"),
    ],
)
def test_streams(redirections: str, status: int, out: str, err: str) -> None:
    if "/dev/full" in redirections and not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    done = run(redirections)
    assert (done.returncode, done.stdout, done.stderr) == (status, out, err)
