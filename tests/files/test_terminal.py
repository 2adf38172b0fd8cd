"""What commands do with the terminal, and that every script opens its command."""

from __future__ import annotations

import logging
import runpy
import sys
from pathlib import Path

import pytest
from scripts_here import SCRIPTS, run

from specdec_plugins.files.errors import UsageError
from specdec_plugins.files.terminal import end_in_a_line, prepare_terminal


def test_importing_the_package_leaves_logging_alone_and_says_nothing() -> None:
    code = (
        "import specdec_plugins, logging; root = logging.getLogger(); "
        "assert not root.handlers and root.level == logging.WARNING, (root.handlers, root.level)"
    )
    done = run(sys.executable, "-c", code, folder=SCRIPTS.parent, LOGLEVEL="bogus")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


NAMES = sorted(
    path.stem
    for path in SCRIPTS.glob("*.py")
    if path.stem == "demo" or "import open_door" in path.read_text("utf-8")
)


def wrong_level(name: str) -> str:
    return f"{name}.py: LOGLEVEL=bogus: must be one of DEBUG, INFO, WARNING, ERROR, CRITICAL"


def messages(said: str) -> list[str]:
    """Without progress, which is indented."""
    return [line for line in said.splitlines() if not line.startswith("  ")]


def test_every_script_opens_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From any folder; a log level that is none is named. As programs they are slow below."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGLEVEL", "bogus")
    monkeypatch.syspath_prepend(SCRIPTS)
    for name in NAMES:
        script = str(SCRIPTS / f"{name}.py")
        monkeypatch.setattr(sys, "argv", [script, "--help"])
        with pytest.raises(SystemExit) as stopped:
            runpy.run_path(script, run_name="__main__")
        assert stopped.value.code == 2
    assert messages(capsys.readouterr().err) == [wrong_level(name) for name in NAMES]
    assert len(NAMES) > 15


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_script_is_a_program(name: str, tmp_path: Path) -> None:
    given = {"folder": tmp_path, "status": 2, "PYTHONPATH": "", "LOGLEVEL": "bogus"}
    done = run(sys.executable, SCRIPTS / f"{name}.py", "--help", **given)
    assert messages(done.stderr) == [wrong_level(name)]


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
