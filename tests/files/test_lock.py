"""An output is never an input, another run's, or in a folder that holds something else."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.output import check_paths, reserved, work_folder

HOLD = """
import sys, time
from specdec_plugins.files.output import reserved
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
        for name in ("out.txt", "link", "trace"):
            assert "another run is at work" in refused(tmp_path / name)
        with (
            pytest.raises(InferenceError, match="at work"),
            reserved([("--json", tmp_path / "other"), ("--output-path", path)]),
        ):
            pass
        with reserved([("--output-path", tmp_path / "other")]):
            pass
    left = ["link", "out.txt"] if there else ["link"]
    assert sorted(name.name for name in tmp_path.iterdir()) == left


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


def test_streams_and_devices_may_be_written_to_by_several(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    outputs = [("--output-path", "-"), ("--trace", None), ("--stats-json", os.devnull)]
    outputs += [("--json", tmp_path / "fifo")]  # type: ignore[list-item]
    check_paths([*outputs, *outputs], [])
    with reserved(outputs), reserved(outputs):
        assert not os.path.exists("/dev/.null.lock")


def test_a_folder_is_no_output_and_an_unwritable_one_has_none(tmp_path: Path) -> None:
    assert "is a folder" in refused(tmp_path)
    with pytest.raises(FileNotFoundError), reserved([("--output-path", tmp_path / "none" / "out")]):
        pass


@pytest.mark.parametrize("kind", ["same", "link", "hard link", "folder"])
def test_two_names_of_a_file(tmp_path: Path, kind: str) -> None:
    path = other = tmp_path / "file"
    path.touch()
    if kind == "link":
        (other := tmp_path / "link").symlink_to("file")
    elif kind == "hard link":
        os.link(path, other := tmp_path / "hard link")
    elif kind == "folder":
        (tmp_path / "folder").symlink_to(tmp_path)
        other = tmp_path / "folder" / "file"
    for outputs, inputs in ([("a", path), ("b", other)], []), ([("a", path)], [("b", other)]):
        with pytest.raises(InferenceError, match="is the same file as"):
            check_paths(outputs, inputs)
    check_paths([("a", tmp_path / "new")], [("b", path), ("c", other)])


@pytest.mark.parametrize(
    ("redirections", "outputs", "fault"),
    [("<in >out", "-", False), ("<in", "in", True), ("<in >>in", "-", True)],
)
def test_standard_streams(tmp_path: Path, redirections: str, outputs: str, fault: bool) -> None:
    """They are known by their descriptors, wherever a shell has sent them."""
    code = (
        "from specdec_plugins.files.output import check_paths\n"
        f"check_paths([('--json', '{outputs}')], [('--in', '-')])"
    )
    (tmp_path / "in").touch()
    done = subprocess.run(
        ["sh", "-c", f'"$0" -c "$1" {redirections}', sys.executable, code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        check=False,
    )
    assert (b"is the same file as" in done.stderr) == fault == bool(done.returncode)


def test_a_folder_of_ours_is_gone_on_with_and_another_is_left_alone(tmp_path: Path) -> None:
    output = tmp_path / "out"
    mark = output / "work" / "job.json"
    with (
        work_folder(output, mark, {"a": 1}),
        pytest.raises(InferenceError, match="at work"),
        work_folder(output, mark, {"a": 1}),
    ):
        pass
    with work_folder(output, mark, {"a": 2}):  # nothing was made yet
        (output / "result").touch()
    with work_folder(output, mark, {"a": 2}):
        pass
    with pytest.raises(InferenceError, match="begun with other a;"), work_folder(output, mark, {}):
        pass
    mark.unlink()
    with (
        pytest.raises(InferenceError, match="holds something else"),
        work_folder(output, mark, {"a": 2}),
    ):
        pass
    assert sorted(path.name for path in output.iterdir()) == ["result", "work"]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock's file itself is the lock there: a second run is refused, and nothing is left."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refuse)
    path = tmp_path / "out.txt"
    for _ in range(2):
        with reserved([("--output-path", path)]):
            assert "another run is at work" in refused(path)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mark", ["experiment.json", ".job/job.json"])
def test_a_run_killed_while_it_describes_itself_goes_on(mark: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / mark).parent.mkdir(parents=True)
    torn = (out / mark).parent / f".{'0a' * 16}.part"
    torn.write_text("{")
    with work_folder(out, out / mark, {"a": 1}):
        assert not torn.exists()
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.part").write_text("precious")
    with pytest.raises(InferenceError), work_folder(other, other / mark, {"a": 1}):
        pass
    assert (other / "mine.part").read_text() == "precious"
