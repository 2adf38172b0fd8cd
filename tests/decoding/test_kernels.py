"""Compiled functions, kept on disk or not."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numba
import pytest
from kills import fork
from numba.core.caching import IndexDataCacheFile

from specdec_plugins.decoding.kernels import compiled


def test_processes_that_compile_at_once_keep_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of arguments of different types: each has a file of its own."""
    save = IndexDataCacheFile._save_index

    def slow(self: IndexDataCacheFile, overloads: object) -> None:
        time.sleep(0.5)
        save(self, overloads)

    monkeypatch.setattr(IndexDataCacheFile, "_save_index", slow)
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    @compiled
    def twice(number: float) -> float:
        return 2 * number

    processes = [fork(lambda: int(twice(21) != 42)), fork(lambda: int(twice(21.0) != 42))]
    assert [os.waitpid(process, 0)[1] for process in processes] == [0, 0]
    assert len(list(tmp_path.rglob("*.nbc"))) == 2
