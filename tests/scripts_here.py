"""The repository's scripts as modules, and programs of any kind."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stdout
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any
from unittest.mock import patch

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
TOOLS = Path(sys.executable).parent


def load_script(name: str) -> Any:
    """``scripts/NAME.py``, run anew as a module of that name."""
    spec = spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    # Dataclasses look their module up.
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call(module: Any, *arguments: object) -> str:
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
