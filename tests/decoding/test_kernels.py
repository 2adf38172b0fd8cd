"""Compiled functions, kept on disk or not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
from specdec_plugins.decoding.kernels import compiled
@compiled
def twice(number):
    return 2 * number
print(twice(21))
"""


SLOW = """
import sys, time
from numba.core.caching import IndexDataCacheFile
save = IndexDataCacheFile._save_index
def slow(self, overloads):
    time.sleep(1)
    save(self, overloads)
IndexDataCacheFile._save_index = slow
"""


def test_processes_that_compile_at_once_keep_all(tmp_path: Path) -> None:
    """Of arguments of different types: each has a file of its own."""
    program = SLOW + PROGRAM.replace("21", "float(21) if sys.argv[1] == 'float' else 21")
    (tmp_path / "program.py").write_text(program)
    environment = {
        **os.environ,
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": os.getcwd(),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "program.py", kind],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for kind in ("int", "float")
    ]
    assert [process.communicate()[0] for process in processes] == ["42\n", "42.0\n"]
    assert len(list(tmp_path.rglob("*.nbc"))) == 2
