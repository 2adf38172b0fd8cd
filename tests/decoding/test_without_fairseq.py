"""What needs no fairseq works where there is none."""

from __future__ import annotations

import sys

from helpers.runs.scripts_here import SCRIPTS, run

BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("fairseq", "fairseq_cli"):
            raise ImportError(f"{name}: is not to be imported here")

sys.meta_path.insert(0, Blocked())
"""

CORE = """
import importlib
import pkgutil

parts = "batch", "kernels", "limits", "options", "statistics", "step_result", "steps.cache"
for name in (*parts, "acceptance", "controllers", "drafts"):
    found = importlib.import_module(f"specdec_plugins.decoding.{name}")
    for module in pkgutil.iter_modules(getattr(found, "__path__", ())):
        importlib.import_module(f"{found.__name__}.{module.name}")

assert not any(name.partition(".")[0].startswith("fairseq") for name in sys.modules)
"""


def test_the_core_needs_no_fairseq() -> None:
    run(sys.executable, "-c", BLOCKED + CORE, status=0, PYTHONPATH=SCRIPTS.parent)
