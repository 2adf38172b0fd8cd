from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from specdec_plugins.host import deferred
from specdec_plugins.host.deferred import deferred_imports


def test_what_is_imported_loads_when_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "heavy").mkdir()
    (tmp_path / "heavy" / "__init__.py").touch()
    (tmp_path / "heavy" / "parts.py").write_text("def double(x, times=2):\n    return times * x\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(deferred, "LIBRARIES", ("heavy", "heavy.parts"))
    with deferred_imports():
        from heavy import parts  # type: ignore[import-not-found]
        from heavy.parts import double  # type: ignore[import-not-found]
    assert "heavy" not in sys.modules
    assert double(4) == 8
    assert parts.double(4, times=3) == 12
    real = sys.modules["heavy.parts"]
    with deferred_imports():
        import heavy.parts as loaded
    assert loaded is real
    for name in ("heavy", "heavy.parts"):
        del sys.modules[name]


def test_fairseq_is_imported_without_them() -> None:
    """In a new process, in which nothing else has imported them; and what needs them works."""
    script = """
import sys
import specdec_plugins.inference
from fairseq.criterions.sentence_prediction import acc_and_f1
before = "sklearn" in sys.modules, "scipy.stats" in sys.modules
import numpy as np
print(*before, acc_and_f1(np.array([1, 0]), np.array([1, 1]))["acc"], "sklearn" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == ["False", "False", "0.5", "True"]
