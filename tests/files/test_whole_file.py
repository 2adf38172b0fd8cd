"""A file is there whole or not at all, and whatever is no file stays what it is."""

from __future__ import annotations

import os
import resource
import signal
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from specdec_plugins.files.output import write_whole


def write(path: Path) -> None:
    write_whole(path, [b"w1\n"] * 9000)


@contextmanager
def small_disk() -> Iterator[None]:
    """No file can grow above so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    real, link = tmp_path / "far" / "real", tmp_path / "link"
    link.symlink_to(tmp_path / "other")
    (tmp_path / "other").symlink_to(Path("far") / "real")
    for _ in range(2):  # first it points to nothing
        write(link)
        assert link.is_symlink()
        assert real.stat().st_size > 16
        assert list((tmp_path / "far").iterdir()) == [real]
        real.write_text("old")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["far", "link", "other"]


def test_permissions_are_those_that_open_gives(tmp_path: Path) -> None:
    path = tmp_path / "file"
    before = os.umask(0o027)
    try:
        write(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o604)
        write(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o604
    finally:
        os.umask(before)


def test_a_reader_of_the_old_file_keeps_it(tmp_path: Path) -> None:
    """Nothing is ever written to a file that has its name, not even when all of it is ready."""
    path = tmp_path / "file"
    path.write_text("old")
    (tmp_path / "other name").hardlink_to(path)
    with path.open() as reader:
        write(path)
        assert reader.read() == "old"
    assert (tmp_path / "other name").read_text() == "old"
    assert path.stat().st_size > 16


@pytest.mark.parametrize("there", [True, False])
def test_a_full_disk_leaves_what_was_there_and_nothing_else(tmp_path: Path, there: bool) -> None:
    path = tmp_path / "file"
    if there:
        path.write_text("precious")
    with pytest.raises(OSError, match=f"too large: .*{path.name}"), small_disk():
        write(path)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["precious"] * there


def test_a_fifo_is_written_to(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(path.read_bytes()))
    reader.start()
    write(path)
    reader.join(timeout=60)
    assert len(got[0]) > 16
    assert path.is_fifo()
    assert [*tmp_path.iterdir()] == [path]


def test_a_name_as_long_as_can_be(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    write(path)
    assert [*tmp_path.iterdir()] == [path]


def test_whatever_stops_it_nothing_is_left(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("precious")

    def chunks() -> Iterator[bytes]:
        yield b"half"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(path, chunks())
    assert [*tmp_path.iterdir()] == [path]
    assert path.read_text() == "precious"
