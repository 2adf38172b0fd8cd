"""Imported first by a script: finds the package; without its libraries it ends in one line."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parent.parent


def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print what ends a script: a library that is missing in one line, all else as usual."""
    if not isinstance(error, ImportError):
        sys.__excepthook__(kind, error, trace)
        return
    name = Path(sys.argv[0]).name
    print(
        f"{name}: {error}; install the package and what it needs: pip install {ROOT}",
        file=sys.stderr,
    )


if (ROOT / "specdec_plugins" / "__init__.py").is_file():
    sys.path.insert(0, str(ROOT))
sys.excepthook = show
