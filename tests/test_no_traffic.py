"""No command opens a connection beyond this machine, or leaves a file of a library that reports.

The commands that README gives are watched in ``test_shipped_pairs.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import gettempdir

import pytest
from scripts_here import SCRIPTS
from watched import traffic

PAIR = SCRIPTS.parent / "checkpoints" / "multi30k.en-de"
TEXT = SCRIPTS.parent / "data" / "captions.en"


def test_the_watch_sees_reports(watch: Path, tmp_path: Path) -> None:
    """Where the user wants them: what is set already stays."""
    command = ["specdec-translate", PAIR, "--input-path", TEXT, "--output-path", tmp_path / "out"]
    found = traffic(watch, tmp_path / "home", *command, ORT_DISABLE_TELEMETRY="0")
    assert "onnxruntime" in found
    assert "getaddrinfo" in found


@pytest.mark.slow
@pytest.mark.parametrize("command", ["evaluate", "tune", "make-pair", "corpus", "demo"])
def test_processes_that_commands_start(command: str, watch: Path, tmp_path: Path) -> None:
    few, many, out = tmp_path / "few.en", tmp_path / "many.en", tmp_path / "out"
    lines = TEXT.read_text("utf-8").splitlines()
    few.write_text("\n".join(lines[:4]) + "\n", "utf-8")
    many.write_text("".join(f"{n} {line}\n" for n in range(5) for line in lines), "utf-8")
    commands: dict[str, list[object]] = {
        "evaluate": ["specdec-evaluate", PAIR, "--rounds", 1, "--no-plots"],
        "tune": ["specdec-tune", PAIR],
        "make-pair": ["specdec-make-pair", PAIR, many, out, "--updates", 4, "--cpu"],
        "corpus": ["specdec-translate-corpus", PAIR],
        "demo": [sys.executable, SCRIPTS / "demo.py", "--model", PAIR, "--lines", 4],
    }
    variables = {}
    if command in ("evaluate", "corpus"):
        commands[command] += ["--input-path", few, "--output-path", out]
    if command == "corpus":
        pytest.importorskip("ray", reason="Ray is not installed")
        variables["TMPDIR"] = gettempdir()  # names of its sockets would be too long elsewhere
    found = traffic(watch, tmp_path / "home", *commands[command], **variables)
    lines = found.splitlines()
    if command == "corpus":
        # Ray connects its processes by this machine's address, and asks for its cloud's.
        lines = [line for line in lines if "microsoft" in line or "onnxruntime" in line]
    assert lines == []
