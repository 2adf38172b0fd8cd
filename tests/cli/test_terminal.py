"""What commands do with the terminal, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def run(*command: object, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


def test_importing_the_package_leaves_logging_alone_and_says_nothing() -> None:
    code = (
        "import specdec_plugins, logging; root = logging.getLogger(); "
        "assert not root.handlers and root.level == logging.WARNING, (root.handlers, root.level)"
    )
    for variables in ({}, {"LOGLEVEL": "bogus"}):
        done = run("-c", code, **variables)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "name",
    [
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
    ],
)
def test_a_log_level_that_is_none_is_named(name: str) -> None:
    done = run(ROOT / "scripts" / f"{name}.py", "--help", LOGLEVEL="bogus")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"{name}.py: LOGLEVEL=bogus: must be one of DEBUG, INFO, WARNING, ERROR, CRITICAL"
    ]


def test_log_levels_are_heeded(tmp_path: Path) -> None:
    """In any case, and for our own lines under the command's name."""
    script = ROOT / "scripts" / "export_checkpoint.py"
    quiet = run(script, tmp_path / "none.pt", tmp_path / "out.pt", LOGLEVEL="error")
    assert len(quiet.stderr.splitlines()) == 1
    code = (
        "from specdec_plugins.cli.terminal import prepare_terminal; import logging; "
        "prepare_terminal('name.py'); logging.info('told')"
    )
    assert run("-c", code, LOGLEVEL="info").stderr == "name.py: told\n"
    assert run("-c", code).stderr == ""
