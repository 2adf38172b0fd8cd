"""A job of shards: every line once and in its place, wherever it is stopped, and only as itself."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from conftest import examples
from helpers.runs.jobs import Numberer
from hypothesis import example, given
from hypothesis import strategies as st

from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.lines import InputLines, Line
from specdec_plugins.files.output import LOCK, JsonObject, work_folder
from specdec_plugins.inference import Settings, Translation
from specdec_plugins.jobs.corpus import (
    FOLDER,
    Corpus,
    Shard,
    check_models,
    count_lines,
    describe_job,
    find_files,
    finish,
    pending,
    read_corpus,
    translate_shard,
)

NOTHING: dict[str, object] = {}
NUMBERER: Any = Numberer()


def read(path: Path, output: Path, shard_lines: int = 2) -> Corpus:
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
    shards = read(path, folder, shard_lines)["in.txt"]
    expected = list(InputLines(io.BytesIO(data)))
    assert count_lines(shards) == len(expected)
    assert all(shard.lines == shard_lines for shard in shards[:-1])
    translated = ""
    for shard in shards:
        translate_shard(NUMBERER, shard, seed=1)
        translated += Path(shard.output).read_bytes().decode()
    assert translated == "".join(f"{line.number}:{line.text}\n" for line in expected)


class Recorder:
    """Notes the draft of each line, and what its shard would draw."""

    def __init__(self) -> None:
        self.drafts: dict[str, str | None] = {}
        self.drawn: dict[str, float] = {}

    def translate(self, lines: Iterable[Line]) -> Iterator[Translation]:
        for line in lines:
            self.drafts[line.text] = line.draft
            self.drawn[line.text] = float(torch.rand(()))
            yield Translation(line.text)


def recorded(shards: Sequence[Shard], seed: int) -> Recorder:
    recorder = Recorder()
    for shard in shards:
        translate_shard(cast(Any, recorder), shard, seed)
    return recorder


def test_every_shard_has_the_drafts_of_its_lines(tmp_path: Path) -> None:
    """And of its file, also where a worker takes shards in another order."""
    texts = {"a": [f"a{n}" for n in range(7)], "b": [f"b{n}" for n in range(3)]}
    for name, lines in texts.items():
        for kind in ("in", "memory"):
            (tmp_path / kind).mkdir(exist_ok=True)
            text = "".join(f"{line} {kind}\n" for line in lines)
            (tmp_path / kind / name).write_text(text)
    files = find_files(tmp_path / "in")[0]
    corpus = read_corpus(files, tmp_path / "out", 3, str(tmp_path / "memory"))
    shards = [shard for shards in corpus.values() for shard in shards]
    assert len(shards) == 4
    drafts = recorded(shards[::-1], 1).drafts
    assert drafts == {f"{line} in": f"{line} memory" for lines in texts.values() for line in lines}


def test_every_shard_draws_by_a_seed_of_its_own(source: Path, tmp_path: Path) -> None:
    """The job's seed and the shard decide, not the worker and what it did before."""
    corpus = read(source, tmp_path / "out", 1)
    shards = [shard for shards in corpus.values() for shard in shards]
    drawn = recorded(shards, 1).drawn
    assert len(set(drawn.values())) == len(shards) == 8
    assert recorded(shards[::-1], 1).drawn == drawn
    assert not set(recorded(shards, 100).drawn.values()) & set(drawn.values())


def test_files_of_a_folder(tmp_path: Path) -> None:
    source = tmp_path / "in"
    for name in ("b.txt", "a/c.txt", ".hidden", ".git/x", "a/.y"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("w1\n" * 3)
    (source / "empty").write_text("")
    for name, target in {"link": "b.txt", "around": "..", "nothing": "nowhere"}.items():
        (source / name).symlink_to(target)
    os.mkfifo(source / "fifo")
    files, rest = find_files(source)
    assert list(files) == ["a/c.txt", "b.txt", "empty", "link"]
    assert sorted(rest) == [".git", ".hidden", "a/.y", "around", "fifo", "nothing"]
    corpus = read_corpus(files, tmp_path / "out", 2)
    assert [count_lines(shards) for shards in corpus.values()] == [3, 3, 0, 3]
    shards = [shard for shards in corpus.values() for shard in shards]
    assert [shard.number for shard in shards] == [0, 1, 2, 3, 4, 5]
    assert len({shard.output for shard in shards}) == 6
    assert list(find_files(source / "b.txt")[0]) == ["b.txt"]


def test_bytes_that_are_no_utf_8_are_named(tmp_path: Path) -> None:
    for data, line in ((b"ok\nb\xe4d\n", 2), (b"a\nb\nc\nd\n\xc3", 5)):
        (tmp_path / "in.txt").write_bytes(data)
        with pytest.raises(InferenceError, match=rf"in.txt: line {line} is not UTF-8"):
            read(tmp_path / "in.txt", tmp_path / "out")


def test_no_input(tmp_path: Path) -> None:
    (tmp_path / ".hidden").write_text("w1\n")
    for path, error in (("nowhere", FileNotFoundError), ("", InferenceError)):
        with pytest.raises(error):
            find_files(tmp_path / path)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Files of 5, 0 and 3 lines."""
    folder = tmp_path / "source"
    (folder / "more").mkdir(parents=True)
    (folder / "a.txt").write_text("w1\n\nw2\nw3\nw4")
    (folder / "empty.txt").write_text("")
    (folder / "more" / "b.txt").write_text("w5\nw6\nw7\n")
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A stand-in of a pair's folder."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("verifier.pt", "drafter.pt", "dict.en.txt", "dict.de.txt", "codes"):
        (folder / name).write_text(name)
    return folder


def make_settings(model: Path, **more: Any) -> Settings:
    files = {"path": str(model / "drafter.pt"), "ar_path": str(model / "verifier.pt")}
    return Settings(data=str(model), bpe="subword_nmt", **{**files, **more})


def job(output: Path, about: JsonObject = NOTHING) -> AbstractContextManager[None]:
    return work_folder(output, output / FOLDER / "job.json", about)


def run(corpus: Corpus, output: Path, max_: int = 99) -> int:
    """Translate up to ``max_`` shards; returns how many were left before."""
    left = pending(corpus, output)
    for shard in left[:max_]:
        translate_shard(NUMBERER, shard, seed=1)
    return len(left)


@given(stops=st.lists(st.integers(0, 3), max_size=6), lost=st.integers(0, 4))
@examples(25)
def test_a_job_goes_on_wherever_it_was_stopped(
    stops: list[int], lost: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("job")
    source, output = folder / "source", folder / "out"
    source.mkdir()
    texts = {"a": "w1\nw2\nw3\n", "b": "w4", "c": "w5\n\nw6\n\n", "d": ""}
    for name, text in texts.items():
        (source / name).write_text(text)
    left = 5
    for max_ in stops:
        with job(output):
            assert run(read(source, output), output, max_) == left
            left = max(0, left - max_)
        # Left by a writer that is killed.
        debris = output / FOLDER / f"{lost % 3:06d}"
        debris.mkdir(exist_ok=True)
        (debris / f".0123{lost}.part").write_text("half a fi")
    times = []
    for rest in (left, 0):
        with job(output):
            assert run(read(source, output), output) == rest
            finish(read(source, output), output)
        times.append([path.stat().st_mtime_ns for path in sorted(output.glob("?"))])
    assert times[0] == times[1]
    for name, text in texts.items():
        expected = [f"{number}:{line}\n" for number, line in enumerate(text.splitlines(), 1)]
        assert (output / name).read_text() == "".join(expected)
    files = {str(path.relative_to(output)) for path in output.rglob("*") if path.is_file()}
    assert files - {f"{FOLDER}/{LOCK}"} == {*texts, f"{FOLDER}/job.json"}


def test_a_shard_is_made_of_the_lines_that_the_job_began_with(tmp_path: Path) -> None:
    """A file that got shorter or longer, or another word, while the job ran is an error."""
    path = tmp_path / "in.txt"
    for text in ("w1\nw2\nw3\n", "w1\nw2\n", "w1\nw2\nw9\nw4\n", "\nw1\nw2\nw3\nw4\n"):
        path.write_text("w1\nw2\nw3\nw4\n")
        shard = read(path, tmp_path / "out")["in.txt"][1]
        path.write_text(text)
        with pytest.raises(InferenceError, match=r"in\.txt: was changed .*after line 2"):
            translate_shard(NUMBERER, shard, seed=1)
        assert not shard.done


def test_a_worker_has_the_models_that_the_job_began_with(
    source: Path, model: Path, tmp_path: Path
) -> None:
    output, settings = tmp_path / "out", make_settings(model)
    with job(output, about(source, model)):
        shard = pending(read(source, output), output)[0]
        check_models(shard, settings)
        for name in ("verifier.pt", "dict.de.txt", "codes"):
            content = (model / name).read_bytes()
            (model / name).write_bytes(b"another")
            with pytest.raises(InferenceError, match="was replaced"):
                check_models(shard, settings)
            (model / name).write_bytes(content)


def test_every_shard_draws_by_its_own_seed(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("w1\nw2\nw3\n")
    drawn = []

    class Drawing(Numberer):
        def translate(self, lines: Iterable[Line]) -> Any:
            drawn.append(float(torch.rand(1)))
            return super().translate(lines)

    for _ in range(2):
        for shard in read(tmp_path / "in.txt", tmp_path / "out", 1)["in.txt"]:
            translate_shard(cast(Any, Drawing()), shard, seed=1)
    assert len(set(drawn)) == 3
    assert drawn[:3] == drawn[3:]


def about(source: Path, model: Path, lines: int = 2, seed: int = 1, **more: Any) -> JsonObject:
    return describe_job(find_files(source)[0], make_settings(model, **more), seed, lines)


def test_another_job_is_refused(source: Path, model: Path, tmp_path: Path) -> None:
    """By the names of its differences, and nothing is changed; folders may be moved."""
    output = tmp_path / "out"
    with job(output, about(source, model)):
        run(read(source, output), output, 2)
    before = (output / FOLDER / "job.json").read_text()

    def refused(difference: str, **changes: Any) -> None:
        with pytest.raises(InferenceError, match=f"was begun with other {difference};"):
            job(output, about(source, model, **changes)).__enter__()
        assert (output / FOLDER / "job.json").read_text() == before

    refused("settings.batch", batch=3)
    refused("settings.seed", seed=2)
    refused("shard_lines", lines=3)
    for path in (source / "a.txt", model / "verifier.pt", model / "dict.de.txt", model / "codes"):
        content = path.read_bytes()
        path.write_bytes(b"another")
        refused(f".*{path.name.removesuffix('.pt')}.*")
        path.write_bytes(content)
    source, model = source.rename(tmp_path / "moved"), model.rename(tmp_path / "moved model")
    output = output.rename(tmp_path / "moved out")
    with job(output, about(source, model)):
        assert run(read(source, output), output) == 3
        finish(read(source, output), output)
    assert (output / "a.txt").read_text() == "1:w1\n2:\n3:w2\n4:w3\n5:w4\n"
