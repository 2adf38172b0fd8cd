"""The files of a run, by whatever names, are told apart before any of them is written to."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from specdec_plugins.decoding.controllers.simple import AcceptanceHeadController
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.paths import check_paths, check_writable
from specdec_plugins.inference import Settings
from specdec_plugins.inference.run_files import check_run, model_files


def same(path: Path) -> Path:
    return path


def through_link(path: Path) -> Path:
    link = path.with_name("link")
    link.symlink_to(path.name)
    return link


def through_hard_link(path: Path) -> Path:
    if not path.exists():
        pytest.skip("what is not there has no other name")
    link = path.with_name("hard link")
    os.link(path, link)
    return link


def through_folder(path: Path) -> Path:
    folder = path.with_name("folder")
    folder.symlink_to(path.parent)
    return folder / path.name


WAYS = [same, through_link, through_hard_link, through_folder]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("there", [True, False])
def test_two_names_of_a_file(tmp_path: Path, way: Callable[[Path], Path], there: bool) -> None:
    path = tmp_path / "file"
    if there:
        path.touch()
    other = way(path)
    message = f"--trace {other}: is the same file as --output-path {path}; name another file"
    with pytest.raises(InferenceError, match=message):
        check_paths([("--output-path", path), ("--trace", other)], [])
    message = f"--trace {other}: is the same file as --input-path {path}; name another file"
    with pytest.raises(InferenceError, match=message):
        check_paths([("--trace", other), ("--json", None)], [("--input-path", path)])
    check_paths([("--trace", tmp_path / "new"), ("--json", tmp_path / "newer")], [("in", other)])
    check_paths([], [("--path", path), ("--AR-path", other)])


def test_what_is_no_file_may_be_several_outputs(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in ("/dev/null", fifo, "-"):
        check_paths([("--output-path", path), ("--json", path)], [("--input-path", path)])


def test_standard_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are told by their descriptors, wherever a shell has sent them."""
    paths = [tmp_path / name for name in ("stdin", "stdout", "stderr")]
    saved = [os.dup(descriptor) for descriptor in range(3)]
    found = []

    def check(outputs: list[Path | str], inputs: list[Path | str]) -> None:
        try:
            check_paths([("--json", p) for p in outputs], [("--input-path", p) for p in inputs])
            found.append("")
        except InferenceError as error:
            found.append(str(error))

    try:
        for descriptor, path in enumerate(paths):
            path.touch()
            os.dup2(os.open(path, os.O_RDWR), descriptor)
        check(["-"], ["-"])
        check([paths[1]], [])
        check([paths[2]], [])
        check([], [paths[1]])
        check([paths[0]], ["-"])
        check([paths[0]], [])
        os.dup2(0, 1)  # program < file >> file
        check(["-"], ["-"])
        os.dup2(1, 2)  # program > file 2>&1
        check(["-"], [])
        os.close(2)
        check(["-"], [])
    finally:
        for descriptor, other in enumerate(saved):
            os.dup2(other, descriptor)
    assert found == [
        "",
        f"--json {paths[1]}: is the same file as standard output; name another file",
        f"--json {paths[2]}: is the same file as standard error; name another file",
        f"standard output: is the same file as --input-path {paths[1]}; name another file",
        f"--json {paths[0]}: is the same file as standard input; name another file",
        "",
        "standard output: is the same file as standard input; name another file",
        "",
        "",
    ]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    names = ("drafter.pt", "verifier.pt", "dict.en.txt", "dict.de.txt", "codes", "spm")
    for name in (*names, "acceptance_head.pt"):
        (tmp_path / name).touch()
    return Settings(
        data=str(tmp_path),
        path=str(tmp_path / "drafter.pt"),
        ar_path=str(tmp_path / "verifier.pt"),
        controller=AcceptanceHeadController(),
        encoder_options={"sentencepiece_model": str(tmp_path / "spm"), "other": "word"},
    )


def test_files_of_the_models(settings: Settings, tmp_path: Path) -> None:
    files = model_files(settings)
    assert {name: Path(path).name for name, path in files.items()} == {
        "drafter": "drafter.pt",
        "verifier": "verifier.pt",
        "acceptance_head": "acceptance_head.pt",
        "dict.en.txt": "dict.en.txt",
        "dict.de.txt": "dict.de.txt",
        "codes": "codes",
        "sentencepiece_model": "spm",
    }
    for path in files.values():
        with pytest.raises(InferenceError, match="is the same file as"):
            check_run(settings, [("--output-path", path)], [])
    check_run(settings, [("--output-path", tmp_path / "new")], [])


def test_what_can_be_written_to(tmp_path: Path) -> None:
    check_writable(str(tmp_path / "new"), "--json")
    (tmp_path / "link").symlink_to("nowhere/file")
    for name, message in (
        ("", "is a directory; name a file in it"),
        ("no/file", f"there is no folder {tmp_path}/no; create it"),
        ("link", f"there is no folder {tmp_path}/nowhere; create it"),
    ):
        with pytest.raises(InferenceError, match=f"--json .*: {message}"):
            check_writable(str(tmp_path / name), "--json")
    assert [path.name for path in tmp_path.iterdir()] == ["link"]
