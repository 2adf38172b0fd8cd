"""No command opens a connection beyond this machine, or leaves a file of a library that reports.

The commands that README gives are watched in ``test_shipped_pairs.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from socket import gethostname
from tempfile import gettempdir

import pytest
from helpers.runs.scripts_here import SCRIPTS
from helpers.runs.watched import traffic

PAIR = SCRIPTS.parent / "checkpoints" / "multi30k.en-de"
TEXT = SCRIPTS.parent / "data" / "captions.en"


def test_the_watch_sees_reports(watch: Path, tmp_path: Path) -> None:
    """Where the user wants them: what is set already stays."""
    few = tmp_path / "few.en"
    few.write_text("A dog runs.\n")
    command = ["specdec-translate", PAIR, "--input-path", few, "--output-path", tmp_path / "out"]
    found = traffic(watch, tmp_path / "home", *command, ORT_DISABLE_TELEMETRY="0")
    # Whether it also sends them before the command ends depends on the machine.
    assert "onnxruntime" in found


def test_the_watch_sees_connections(watch: Path, tmp_path: Path) -> None:
    """The connection of a datagram socket, which sends nothing, and a name that is an address."""
    program = """
import socket
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("192.0.2.1", 9))
socket.getaddrinfo("192.0.2.2", 9)
"""
    found = traffic(watch, tmp_path / "home", sys.executable, "-c", program)
    assert "connect 192.0.2.1" in found
    assert "getaddrinfo 192.0.2.2" in found


def ray_address() -> str:
    """This machine's address, as Ray knows it."""
    from ray.util import get_node_ip_address

    return str(get_node_ip_address())


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
    # Ray's processes reach each other by this machine's name and address. Ray learns it from a
    # datagram socket with 8.8.8.8 as its peer, to which nothing is sent.
    machine = {"0.0.0.0", "8.8.8.8", gethostname()}
    here = {ray_address(), *machine} if command == "corpus" else set[str]()
    # torch makes an empty folder for what it might compile.
    found = "\n".join(line for line in found.splitlines() if "torchinductor_" not in line)
    assert [
        line for line in found.splitlines() if line.split()[-1].split(":")[-1] not in here
    ] == []
