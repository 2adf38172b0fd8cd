"""What others can have written is told from what they cannot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specdec_plugins.files.ownership import check_owner


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make it another user's; who is not root becomes another user instead."""
    if os.getuid() == 0:
        os.chown(path, 12345, -1)
    else:
        user = os.getuid() + 1
        monkeypatch.setattr(os, "getuid", lambda: user)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """In two folders; a umask of others is none of ours."""
    path = tmp_path / "a" / "b" / "file"
    path.parent.mkdir(parents=True)
    path.touch()
    for part in (path, *path.parents[:2]):
        part.chmod(0o755)
    return path


def test_what_is_ones_own(file: Path) -> None:
    check_owner(file)
    check_owner(file.parent)
    with pytest.raises(FileNotFoundError):
        check_owner(file.parent / "none")


@pytest.mark.parametrize("place", ["", "a/b/file", "a/b", "a"])
@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_what_others_may_write_to(file: Path, tmp_path: Path, place: str, mode: int) -> None:
    """The message names the file or folder; by a link it is no safer."""
    link = tmp_path / "link"
    link.symlink_to(file)
    part = tmp_path / place
    part.chmod(mode)
    for path in (file, link):
        with pytest.raises(PermissionError, match="others may write to it; make it yours") as told:
            check_owner(path)
        assert told.value.filename == str(part)


def test_where_only_owners_may_replace_what_is_theirs(file: Path) -> None:
    """As in ``/tmp``."""
    file.parent.chmod(0o1777)
    check_owner(file)


@pytest.mark.parametrize("place", ["a/b/file", "a/b", "a"])
def test_what_is_another_users(
    file: Path, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_away(tmp_path / place, monkeypatch)
    with pytest.raises(PermissionError, match="it is another user's; make it yours"):
        check_owner(file)


def test_what_is_above_ones_home_is_the_systems(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "a"))
    tmp_path.chmod(0o777)
    check_owner(file)
