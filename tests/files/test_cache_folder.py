"""What the cache folder holds is bounded, and can be removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specdec_plugins.cli.cache import main
from specdec_plugins.files.cache import keep, read_kept, size, trim


def entry(path: Path, age: int, count: int = 100) -> Path:
    """A file of so many bytes that was used so many seconds ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(count))
    time = 1e9 - age
    os.utime(path, (time, time))
    return path


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    old, used, new = (entry(tmp_path / f"{age}.bin", age) for age in (3, 2, 1))
    folder = entry(tmp_path / "model" / "weights", 9, 300).parent
    os.utime(folder, (1e9 - 4, 1e9 - 4))
    unfinished = entry(tmp_path / ".unfinished", 99, 1000)
    assert size(tmp_path) == 1600
    trim(tmp_path, 600)
    assert folder.exists()
    trim(tmp_path, 200)
    assert not folder.exists()
    assert not old.exists()
    assert used.exists()
    assert new.exists()
    assert unfinished.exists()


def test_what_was_just_kept_stays(tmp_path: Path) -> None:
    old, new = entry(tmp_path / "old", 2), entry(tmp_path / "new", 1)
    trim(tmp_path, 10)
    assert not old.exists()
    assert new.exists()


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It tells how much there is, removes it, and minds an empty cache as little."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder, other = tmp_path / "specdec", entry(tmp_path / "other", 1)
    entry(folder / "compiled" / "a.bin", 1, 2**20)
    entry(folder / "costs.json", 1)
    for arguments, said in ([], "1 MiB"), (["--empty"], "1 MiB removed"), ([], "0 MiB"):
        assert main(arguments) == 0
        assert capsys.readouterr().out == f"{folder}: {said}\n"
    assert not folder.exists()
    assert other.exists()


def test_what_is_kept_is_ones_own_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "specdec" / "file"
    before = os.umask(0o002)
    try:
        for content in (b"one", b"other"):
            keep(path, content)
            assert read_kept(path) == content
    finally:
        os.umask(before)
    path.chmod(0o664)
    with pytest.raises(PermissionError):
        read_kept(path)
    keep(path, b"anew")
    assert read_kept(path) == b"anew"
