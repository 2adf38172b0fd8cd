"""From a script in this folder to the command of the same name, where nothing is installed too."""

from __future__ import annotations

import importlib
import sys
from typing import NoReturn

import installed  # noqa: F401


def open_door(name: str) -> NoReturn:
    """Run ``specdec_plugins.cli``'s command of this name, and end with its status."""
    try:
        command = importlib.import_module(f"specdec_plugins.cli.{name}")
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(command.main())
