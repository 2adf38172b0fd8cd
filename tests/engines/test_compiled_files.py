"""What was compiled is kept within bounds."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from specdec_plugins.engines import compiled_files
from specdec_plugins.engines.compiled_files import CompiledFiles
from specdec_plugins.files.cache import trim


def test_what_is_used_outlives_what_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiled_files, "trim", partial(trim, most=300))
    files = CompiledFiles({})
    used, idle, new = (files.path(name) for name in ("used", "idle", "new"))
    for path, time in (used, 1e9), (idle, 1e9 + 1):
        files.save(path, bytes(100))
        os.utime(path, (time, time))
    assert files.load(used) == bytes(100)
    files.save(new, bytes(100))
    assert [path.exists() for path in (used, idle, new)] == [True, False, True]
