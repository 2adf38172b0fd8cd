"""An output belongs to one run at a time, and to none that has ended, however it has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.lock import reserved
from specdec_plugins.files.paths import check_paths, lock_path

HOLD = """
import sys, time
from specdec_plugins.files.lock import reserved
with reserved([("--output-path", sys.argv[1])]):
    print("held", flush=True)
    time.sleep(600)
"""


def refused(path: Path) -> str:
    with pytest.raises(InferenceError) as caught, reserved([("--output-path", path)]):
        pass
    return str(caught.value)


@pytest.mark.parametrize("there", [True, False])
def test_a_second_run_is_refused_and_nothing_is_left(tmp_path: Path, there: bool) -> None:
    path = tmp_path / "out.txt"
    if there:
        path.write_text("precious\n")
    (tmp_path / "link").symlink_to(path)
    with reserved([("--output-path", path), ("--trace", tmp_path / "trace")]):
        for name in ("out.txt", "link"):
            assert refused(tmp_path / name) == (
                f"--output-path {tmp_path / name}: another run is at work there; wait for it, or "
                "name another"
            )
        assert "at work" in refused(tmp_path / "trace")
        with reserved([("--output-path", tmp_path / "other")]):
            pass
    with reserved([("--output-path", path)]):
        pass
    left = ["link", "out.txt"] if there else ["link"]
    assert sorted(name.name for name in tmp_path.iterdir()) == left


def test_what_is_reserved_before_a_refusal_is_given_back(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with reserved([("--trace", second)]):
        with (
            pytest.raises(InferenceError, match="at work"),
            reserved([("--output-path", first), ("--trace", second)]),
        ):
            pass
        with reserved([("--output-path", first)]):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_killed_run_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"held\n"
        assert "at work" in refused(path)
        run.send_signal(signal.SIGKILL)
    with reserved([("--output-path", path)]):
        assert "at work" in refused(path)
    assert list(tmp_path.iterdir()) == []


def test_streams_and_devices_may_be_written_to_by_several() -> None:
    outputs = [("--output-path", "-"), ("--trace", None), ("--stats-json", os.devnull)]
    check_paths(outputs, [])
    with reserved(outputs), reserved(outputs):
        assert not os.path.exists(lock_path(os.devnull))


@pytest.mark.parametrize("name", ["n" * 255, "é" * 127])
def test_names_as_long_as_they_can_be(tmp_path: Path, name: str) -> None:
    with reserved([("--output-path", tmp_path / name)]):
        assert "at work" in refused(tmp_path / name)


def test_an_input_is_no_lock(tmp_path: Path) -> None:
    source = tmp_path / ".out.txt.lock"
    source.write_text("precious\n")
    with pytest.raises(InferenceError, match=r"out.txt's lock: is the same file as --input-path"):
        check_paths([("--output-path", tmp_path / "out.txt")], [("--input-path", source)])


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    os.symlink(tmp_path / "nowhere", lock_path(path))  # which is not followed, whoever one is
    assert "its folder cannot be written to" in refused(path)
