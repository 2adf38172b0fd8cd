"""The repository's scripts as modules, and programs of any kind."""

from __future__ import annotations
from types import ModuleType

import io
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
TOOLS = Path(sys.executable).parent
sys.path.append(str(SCRIPTS))  # as Python puts it for a script


def load_script(name: str) -> ModuleType:
    """``scripts/NAME.py``, run anew as a module of that name."""
    spec = spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    # Dataclasses look their module up.
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call(module: ModuleType, *arguments: object) -> str:
    """Run a script's ``main`` in this process; return what it prints."""
    written, command = io.BytesIO(), [module.__name__, *map(str, arguments)]
    printed = io.TextIOWrapper(written, "utf-8", write_through=True)
    with redirect_stdout(printed), patch.object(sys, "argv", command):
        module.main()
    printed.flush()
    return written.getvalue().decode()


def run(
    *command: object, folder: Path | None = None, status: int | None = None, **variables: object
) -> subprocess.CompletedProcess[str]:
    """Run a program; those of this environment are found by their names.

    Args:
        folder: where it runs, if not here.
        status: what it has to end with, if not with anything.
        variables: of its environment, beside those that are here.
    """
    path = f"{TOOLS}{os.pathsep}{os.environ['PATH']}"
    given = {name: str(value) for name, value in variables.items()}
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PATH": path, **given},
        timeout=600,
    )
    assert status in (None, done.returncode), (done.stdout + done.stderr)[-3000:]
    return done


CALL = """#!/bin/sh
printf '%s\\n' "${0##*/}" "$@" >"${0%/*}/calls"
read -r status <"${0%/*}/answers"
exit "$status"
"""
WHOLE = '"$@"; status=$?; : >"$0"; exit $status'


def run_shell(*command: object, **programs: Callable[[list[str]], int | None]) -> tuple[int, str]:
    """Run a shell script that has one core; return its status and all that it says.

    Args:
        programs: functions of this process that stand for programs, ``_`` for each ``-``.
    """
    with TemporaryDirectory() as folder:
        calls, answers, log = (Path(folder) / name for name in ("calls", "answers", "log"))
        os.mkfifo(calls), os.mkfifo(answers)
        names = {name.replace("_", "-"): main for name, main in programs.items()}
        for name in ("nproc", *names):
            stub = Path(folder) / name
            stub.write_text(CALL if name in names else "#!/bin/sh\necho 1\n")
            stub.chmod(0o755)
        environment = {**os.environ, "PATH": f"{folder}:{TOOLS}:{os.environ['PATH']}"}
        line = ["sh", "-c", WHOLE, str(calls), *map(str, command)]
        with (
            log.open("w") as said,
            subprocess.Popen(line, stdout=said, stderr=said, env=environment) as script,
        ):
            try:
                while words := calls.read_text().splitlines():
                    answers.write_text(f"{names[words[0]](words[1:]) or 0}\n")
            except BaseException:
                answers.write_text("1\n")
                script.kill()
                raise
        return script.returncode, log.read_text()
