"""Files into shards and back: every line once and in its place, whatever the lines are."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest
from conftest import examples
from hypothesis import example, given
from hypothesis import strategies as st
from jobs import Numberer

from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.lines import InputLines
from specdec_plugins.jobs.corpus import CorpusFile, find_files, read_corpus, translate_shard


def read(path: Path, output: Path, shard_lines: int = 2) -> list[CorpusFile]:
    return read_corpus(find_files(path)[0], output, shard_lines)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corpus")


@given(
    lines=st.lists(st.text(alphabet="ab \r\té\u2028\ufeff", max_size=4), max_size=12),
    last_feed=st.booleans(),
    shard_lines=st.integers(1, 5),
)
# A byte order mark that is not at the start.
@example(lines=["a", "\ufeffb"], last_feed=False, shard_lines=1)
@example(lines=[], last_feed=False, shard_lines=1)
@example(lines=["", "", ""], last_feed=True, shard_lines=2)
@examples(60)
def test_shards_are_the_file_in_parts(
    lines: list[str], last_feed: bool, shard_lines: int, folder: Path
) -> None:
    data = ("\n".join(lines) + ("\n" if last_feed else "")).encode()
    path = folder / "in.txt"
    path.write_bytes(data)
    (file,) = read(path, folder, shard_lines)
    expected = list(InputLines(io.BytesIO(data)))
    assert file.lines == len(expected)
    assert all(shard.lines == shard_lines for shard in file.shards[:-1])
    translated = ""
    for shard in file.shards:
        translate_shard(Numberer(), shard, seed=1)  # type: ignore[arg-type]
        translated += Path(shard.output).read_bytes().decode()
    assert translated == "".join(f"{line.number}:{line.text}\n" for line in expected)


def test_files_of_a_folder(tmp_path: Path) -> None:
    for name in ("b.txt", "a/c.txt", ".hidden", ".git/x", "a/.y"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("w1\n" * 3)
    (tmp_path / "empty").write_text("")
    corpus = read(tmp_path, tmp_path / "out")
    assert [file.name for file in corpus] == ["a/c.txt", "b.txt", "empty"]
    assert [file.lines for file in corpus] == [3, 3, 0]
    shards = [shard for file in corpus for shard in file.shards]
    assert [shard.number for shard in shards] == [0, 1, 2, 3]
    assert len({shard.output for shard in shards}) == 4
    assert corpus[0].digest == corpus[1].digest != corpus[2].digest
    assert list(find_files(tmp_path / "b.txt")[0]) == ["b.txt"]


def test_links_are_followed_and_what_is_passed_over_is_named(tmp_path: Path) -> None:
    source, elsewhere = tmp_path / "in", tmp_path / "elsewhere"
    for folder in (source / "a", elsewhere / "deep"):
        folder.mkdir(parents=True)
        (folder / "x.txt").write_text("w1\n")
    for name, target in {
        "near": "a",
        "far": "../elsewhere",
        "file.txt": "../elsewhere/deep/x.txt",
        "a/around": "..",
        "nothing": "nowhere",
        "itself": "itself",
        ".old": "a",
    }.items():
        (source / name).symlink_to(target)
    # Two folders that hold links to each other.
    (elsewhere / "deep" / "back").symlink_to(source / "a")
    (source / "a" / "there").symlink_to(elsewhere)
    os.mkfifo(source / "fifo")
    files, passed_over = find_files(source)
    assert list(files) == [
        "a/there/deep/x.txt",
        "a/x.txt",
        "far/deep/back/x.txt",
        "far/deep/x.txt",
        "file.txt",
        "near/there/deep/x.txt",
        "near/x.txt",
    ]
    assert {path.read_text() for path in files.values()} == {"w1\n"}
    loops = ("a/around", "a/there/deep/back", "far/deep/back/around", "far/deep/back/there")
    loops += ("near/around", "near/there/deep/back")
    assert sorted(passed_over) == sorted([".old", "fifo", "itself", "nothing", *loops])


def test_bytes_that_are_no_utf_8_are_named(tmp_path: Path) -> None:
    for data, line in ((b"ok\nb\xe4d\n", 2), (b"a\nb\nc\nd\n\xc3", 5)):
        (tmp_path / "in.txt").write_bytes(data)
        with pytest.raises(InferenceError, match=rf"in.txt: line {line} is not UTF-8"):
            read(tmp_path / "in.txt", tmp_path / "out")


def test_no_input(tmp_path: Path) -> None:
    with pytest.raises(InferenceError, match=r"--input-path .*nowhere: cannot be read"):
        find_files(tmp_path / "nowhere")
    (tmp_path / ".hidden").write_text("w1\n")
    with pytest.raises(InferenceError, match="holds no files"):
        find_files(tmp_path)


def test_a_shard_whose_input_has_changed_is_not_translated(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("w1\nw2\n")
    ((shard,),) = (file.shards for file in read(path, tmp_path / "out"))
    path.write_text("w1\nw3\n")
    with pytest.raises(InferenceError, match=r"in.txt: has changed"):
        translate_shard(Numberer(), shard, seed=1)  # type: ignore[arg-type]
    assert not shard.done


def test_a_shard_that_fails_midway_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("w1\nw2\n")
    ((shard,),) = (file.shards for file in read(path, tmp_path / "out"))

    class Failing(Numberer):
        def translate(self, lines: Any) -> Any:
            yield next(super().translate(lines))
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        translate_shard(Failing(), shard, seed=1)  # type: ignore[arg-type]
    assert list(Path(shard.output).parent.iterdir()) == []
