"""From a script in this folder to the command of the same name, where nothing is installed too."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent


def open_door(name: str) -> NoReturn:
    """Run ``specdec_plugins.cli``'s command of this name, and end with its status."""
    if (ROOT / "specdec_plugins" / "__init__.py").is_file():
        sys.path.insert(0, str(ROOT))
    try:
        command = importlib.import_module(f"specdec_plugins.cli.{name}")
    except ImportError as error:
        sys.exit(f"{name}.py: {error}; install the package and what it needs: pip install {ROOT}")
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(command.main())
