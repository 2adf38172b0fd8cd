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


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CompiledFiles:
    """In a folder of their own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return CompiledFiles({})


def test_a_file_of_another_key(files: CompiledFiles, caplog: pytest.LogCaptureFixture) -> None:
    """It is whole, and may be of another model of the same shapes."""
    path, other = files.path("one"), files.path("other")
    files.save(path, b"compiled")
    path.rename(other)
    assert files.load(other) is None
    assert f"{other}: is damaged, or another's; compiling anew" in caplog.text
    assert files.load(path) is None


@pytest.mark.parametrize("of_folder", [False, True])
def test_a_file_that_others_can_have_written(
    of_folder: bool, files: CompiledFiles, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a folder one warning is enough."""
    paths = [files.path("one"), files.path("other")]
    for path in paths:
        files.save(path, b"compiled")
        assert files.keeps(path.stem) is False  # which is no fingerprint
    assert files.keeps("one")
    shared = paths[0].parent if of_folder else paths[0]
    shared.chmod(0o777)
    loaded = [files.load(path) for path in paths]
    assert loaded == [None, None if of_folder else b"compiled"]
    assert not files.keeps("one")
    (said,) = caplog.messages
    assert said.startswith(f"{shared}: cannot be used (others may write to it; make it yours")
