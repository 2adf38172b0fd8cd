"""What commands do with the terminal, and that every script opens its command."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specdec_plugins.files.errors import UsageError
from specdec_plugins.files.terminal import end_in_a_line, prepare_terminal

ROOT = Path(__file__).resolve().parent.parent.parent


def run(
    *command: object, folder: Path = ROOT, **variables: str
) -> subprocess.CompletedProcess[str]:
    environment = {name: v for name, v in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**environment, **variables},
    )


def test_importing_the_package_leaves_logging_alone_and_says_nothing() -> None:
    code = (
        "import specdec_plugins, logging; root = logging.getLogger(); "
        "assert not root.handlers and root.level == logging.WARNING, (root.handlers, root.level)"
    )
    done = run("-c", code, LOGLEVEL="bogus")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


NAMES = (
    "calibrate_head",
    "demo",
    "encoder_initial",
    "evaluate",
    "exactness",
    "export_checkpoint",
    "inference",
    "recombine",
    "train",
    "trace_report",
    "translate_corpus",
)


def wrong_level(name: str) -> str:
    return f"{name}.py: LOGLEVEL=bogus: must be one of DEBUG, INFO, WARNING, ERROR, CRITICAL"


def messages(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What was said, without progress, which is indented."""
    return [line for line in done.stderr.splitlines() if not line.startswith("  ")]


OPEN_ALL = """
import os, runpy, sys
import fairseq, numba
for script in sys.argv[1:]:
    if not os.fork():
        sys.argv[:] = [script, "--help"]
        sys.path[0] = os.path.dirname(script)
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as stop:
            os._exit(stop.code)
        os._exit(70)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""
"""Every script in a fork of one process, which has what takes long to import and to clear away."""


def test_every_script_opens_its_command(tmp_path: Path) -> None:
    """From any folder, and where nothing is installed; a log level that is none is named."""
    scripts = [ROOT / "scripts" / f"{name}.py" for name in NAMES]
    done = run("-c", OPEN_ALL, *scripts, folder=tmp_path, LOGLEVEL="bogus")
    assert messages(done)[-len(NAMES) :] == [wrong_level(name) for name in NAMES]
    assert done.stdout.split() == ["2"] * len(NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_script_is_a_program(name: str, tmp_path: Path) -> None:
    done = run(ROOT / "scripts" / f"{name}.py", "--help", folder=tmp_path, LOGLEVEL="bogus")
    assert done.returncode == 2
    assert messages(done) == [wrong_level(name)]


@pytest.mark.parametrize(("level", "told"), [("info", "name.py: told\n"), ("error", ""), ("", "")])
def test_log_levels_are_heeded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], level: str, told: str
) -> None:
    """In any case, and for our own lines under the command's name."""
    root = logging.getLogger()
    before, handlers = root.level, root.handlers[:]
    monkeypatch.setenv("LOGLEVEL", level)
    monkeypatch.setattr(sys, "warnoptions", ["default"])
    root.handlers[:] = []
    try:
        prepare_terminal("name.py")
        logging.info("told")
        assert root.level == getattr(logging, level.upper() or "WARNING")
    finally:
        root.handlers[:] = handlers
        root.setLevel(before)
    assert capsys.readouterr().err == told


def test_commands_of_fairseq_end_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where one says what is wrong; what nobody foresaw has its traceback, and so has debugging."""

    def said(error: Exception, prog: str = "fairseq-generate") -> str:
        monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
        end_in_a_line(prog)
        sys.excepthook(type(error), error, error.__traceback__)
        return capsys.readouterr().err

    assert said(UsageError("give\nboth")) == "fairseq-generate: give both\n"
    assert said(ValueError("unforeseen")) == "ValueError: unforeseen\n"
    assert "errors.UsageError: both" in said(UsageError("both"), "python")
    monkeypatch.setenv("LOGLEVEL", "DEBUG")
    assert "errors.UsageError: both" in said(UsageError("both"))
