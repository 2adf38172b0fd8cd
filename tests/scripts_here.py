"""The repository's scripts as modules."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


def load_script(name: str) -> Any:
    """``scripts/NAME.py``, run anew as a module of that name."""
    spec = spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    # Dataclasses look their module up.
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
