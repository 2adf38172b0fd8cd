"""Compiled functions, kept on disk or not."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path
from typing import Any

import numba
import pytest
from helpers.runs.kills import fork
from numba.core.caching import IndexDataCacheFile

from specdec_plugins.engines import compiling
from specdec_plugins.engines.compiling import compiled
from specdec_plugins.engines.writer import trial


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


def test_functions_stay_as_they_are_for_a_debugger(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``NUMBA_DISABLE_JIT``; and there is no writer, whose instructions are LLVM's."""
    monkeypatch.setattr(compiling, "COMPILES", False)
    monkeypatch.setattr(trial, "COMPILES", False)
    monkeypatch.setattr(numba, "njit", lambda **_: lambda function: function)

    def twice(number: float) -> float:
        return 2 * number

    assert compiled(twice) is twice
    assert not trial.runs_here()


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", ["empty", "half", "noise", "another pickle", "folder"])
def test_a_damaged_cache_is_compiled_anew(
    kind: str, damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And stored: a crash or a full disk may leave anything, and the next run is whole again."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def twice(number: float) -> float:
        return 2 * number

    assert compiled(twice)(21) == 42
    (path,) = tmp_path.rglob(f"*.{kind}")
    content = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    else:
        contents = {"empty": b"", "half": content[: len(content) // 2], "noise": b"\0" * 100}
        path.write_bytes(contents.get(damage, pickle.dumps("no cache")))
    again: Any = compiled(twice)
    assert again(21) == 42
    if damage != "folder":
        last: Any = compiled(twice)
        assert last(21) == 42
        assert sum(last.stats.cache_hits.values()) == 1
