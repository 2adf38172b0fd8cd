from __future__ import annotations

import gc
import importlib
import sys
from pathlib import Path

import pytest

from specdec_plugins import cli
from specdec_plugins.host import fairseq_import as deferred
from specdec_plugins.host.fairseq_import import importing_fairseq


def test_a_module_loads_when_it_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "heavy").mkdir()
    (tmp_path / "heavy" / "__init__.py").touch()
    (tmp_path / "heavy" / "parts.py").write_text("def double(x, times=2):\n    return times * x\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(deferred, "LIBRARIES", ("heavy", "heavy.parts"))
    with importing_fairseq():
        from heavy import parts  # type: ignore[import-not-found]
        from heavy.parts import double  # type: ignore[import-not-found]
    assert "heavy" not in sys.modules
    assert double(4) == 8
    assert parts.double(4, times=3) == 12
    real = sys.modules["heavy.parts"]
    with importing_fairseq():
        import heavy.parts as loaded
    assert loaded is real
    for name in ("heavy", "heavy.parts"):
        del sys.modules[name]


def test_nothing_looks_for_garbage_meanwhile() -> None:
    """Afterwards it is looked for as before, but not among the libraries of a command."""
    with importing_fairseq():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with importing_fairseq():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
    gc.unfreeze()
    importlib.reload(cli)
    assert gc.isenabled()
    assert gc.get_freeze_count() > 100_000
