"""Standard streams that are closed, full, or read by nobody."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
from specdec_plugins.inference import InferenceError
from specdec_plugins.inference.streams import open_standard_streams, put, tell
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
    command = ["sh", "-c", f'"$0" -c "$1" {redirections}', sys.executable, PROGRAM]
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
    said = [line for line in done.stderr.splitlines(True) if not line.startswith("INFO:")]
    assert (done.returncode, done.stdout, "".join(said)) == (status, out, err)
