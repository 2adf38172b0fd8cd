"""The wrapper of commands: streams that are closed or full, signals, errors as one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from email.message import Message
from pathlib import Path
from urllib.error import HTTPError

import pytest
from helpers.runs.scripts_here import SCRIPTS, run

from specdec_plugins.files.command import command
from specdec_plugins.files.errors import InferenceError

PACKAGE = SCRIPTS.parent / "specdec_plugins"
PROGRAM = """
import sys, types

# The room alone: importing all of the package takes seconds.
sys.modules["specdec_plugins"] = types.ModuleType("specdec_plugins")
sys.modules["specdec_plugins"].__path__ = [sys.argv[1]]

from specdec_plugins.files.command import command, put, tell

@command()
def main(argv):
    tell("progress")
    put("result\\n")

sys.exit(main([]))
"""


@pytest.mark.parametrize(
    ("redirections", "status", "out", "err"),
    [
        ("2>/dev/full", 0, "result\n", ""),
        (">/dev/full", 1, "", "progress\n-c: [Errno 28]"),
        ("| true", 0, "", "progress\n"),
    ],
)
def test_streams(redirections: str, status: int, out: str, err: str) -> None:
    if "/dev/full" in redirections and not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    line = ["sh", "-c", f'"$0" -c "$1" "$2" {redirections}', sys.executable, PROGRAM, str(PACKAGE)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (status, out)
    assert done.stderr.startswith(err)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_clean_up(number: signal.Signals, tmp_path: Path) -> None:
    @command("interrupted; lines are kept")
    def main(argv: list[str]) -> None:
        (tmp_path / "work").touch()
        try:
            os.kill(os.getpid(), number)
            time.sleep(60)
        finally:
            (tmp_path / "work").unlink()

    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for other in before:
        signal.signal(other, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
    try:
        assert main([]) == 128 + number
    finally:
        for other, handler in before.items():
            signal.signal(other, handler)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_import_is_one_line(tmp_path: Path) -> None:
    """Here of a library that takes the exception for its own."""
    library = """
import time
try:
    print("importing", flush=True), time.sleep(60)
except BaseException:
    pass
"""
    (tmp_path / "torch.py").write_text(library)
    name = "specdec-translate"
    program = f"import sys; sys.argv[0] = {name!r}; from specdec_plugins.cli import inference"
    begun = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{PACKAGE.parent}"},
        # A shell's background ignores it, and so would this.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert begun.stdout is not None
    assert begun.stdout.readline() == "importing\n"
    begun.send_signal(signal.SIGINT)
    assert begun.communicate(timeout=30)[1] == f"{name}: interrupted\n"
    assert begun.returncode == 128 + signal.SIGINT


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InferenceError("a\nb"), 1),
        (OSError("a b"), 1),
        (ValueError("a b"), 2),
        (HTTPError("http://a/", 413, "a b", Message(), None), 1),
    ],
)
def test_errors_are_one_line(
    error: Exception, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    @command()
    def main(argv: list[str]) -> None:
        raise error

    assert main([]) == status
    assert capsys.readouterr().err.endswith(": a b\n")


def test_importing_the_package_leaves_logging_alone() -> None:
    code = "import specdec_plugins, logging; assert not logging.getLogger().handlers"
    done = run(sys.executable, "-c", code, folder=SCRIPTS.parent, LOGLEVEL="bogus")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("[ONNXRuntimeError] : 6 : Failed to allocate memory for requested buffer"),
        RuntimeError("std::bad_alloc"),
    ],
)
def test_out_of_memory_is_a_line_with_its_remedy(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    @command()
    def main(argv: list[str]) -> None:
        raise error

    assert main([]) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "give a smaller --batch" in told


def test_other_errors_keep_their_traceback() -> None:
    @command()
    def main(argv: list[str]) -> None:
        raise RuntimeError("a fault of ours")

    with pytest.raises(RuntimeError, match="a fault of ours"):
        main([])
