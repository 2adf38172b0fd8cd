"""A job that is stopped anywhere goes on without losing or repeating a line, and only as itself."""

from __future__ import annotations

import dataclasses
import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from jobs import Numberer

from specdec_plugins.decoding.controllers.simple import AcceptanceHeadController
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.lock import LOCK, work_folder
from specdec_plugins.files.output import JsonObject, differing
from specdec_plugins.inference import Settings
from specdec_plugins.jobs.corpus import (
    FOLDER,
    CorpusFile,
    describe_job,
    find_files,
    finish,
    pending,
    read_corpus,
    translate_shard,
)

NOTHING: dict[str, Any] = {}


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


def read(source: Path, output: Path, shard_lines: int = 2) -> list[CorpusFile]:
    return read_corpus(find_files(source)[0], output, shard_lines)


def job(output: Path, about: JsonObject = NOTHING) -> AbstractContextManager[None]:
    return work_folder(output, output / FOLDER / "job.json", about)


def run(corpus: list[CorpusFile], output: Path, max_: int = 99) -> int:
    """Translate up to ``max_`` shards; returns how many were left before."""
    left = pending(corpus, output)
    for shard in left[:max_]:
        translate_shard(Numberer(), shard, seed=1)  # type: ignore[arg-type]
    return len(left)


def check(output: Path) -> None:
    assert (output / "a.txt").read_text() == "1:w1\n2:\n3:w2\n4:w3\n5:w4\n"
    assert (output / "empty.txt").read_text() == ""
    assert (output / "more" / "b.txt").read_text() == "1:w5\n2:w6\n3:w7\n"
    files = sorted(str(path.relative_to(output)) for path in output.rglob("*") if path.is_file())
    files = [name for name in files if name != f"{FOLDER}/{LOCK}"]
    assert files == [f"{FOLDER}/job.json", "a.txt", "empty.txt", "more/b.txt"]


def test_a_job_from_beginning_to_end(source: Path, tmp_path: Path) -> None:
    """And once more: nothing is left to do, and nothing is done."""
    output = tmp_path / "out"
    corpus = read(source, output)
    times = []
    for left in (5, 0):
        with job(output):
            assert run(corpus, output) == left
            finish(corpus, output)
        check(output)
        times.append([path.stat().st_mtime_ns for path in sorted(output.glob("*.txt"))])
    assert times[0] == times[1]


@given(stops=st.lists(st.integers(0, 3), max_size=6), lost=st.integers(0, 4))
@examples(25)
def test_a_job_goes_on_wherever_it_was_stopped(
    stops: list[int], lost: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("job")
    source, output = folder / "source", folder / "out"
    source.mkdir()
    texts = {"a": "w1\nw2\nw3\n", "b": "w4", "c": "w5\n\nw6\n\n"}
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
    with job(output):
        assert run(read(source, output), output) == left
        finish(read(source, output), output)
    for name, text in texts.items():
        expected = [f"{number}:{line}\n" for number, line in enumerate(text.splitlines(), 1)]
        assert (output / name).read_text() == "".join(expected)
    assert sorted(path.name for path in output.iterdir()) == [FOLDER, "a", "b", "c"]


def test_a_damaged_shard_is_not_put_together(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    corpus = read(source, output)
    with job(output):
        run(corpus, output)
        damaged = Path(corpus[0].shards[1].output)
        for text in ("", "one\n", "one\ntwo\nthree\n", "one\n\ntwo"):
            damaged.write_text(text)
            with pytest.raises(InferenceError, match=rf"{damaged.name}: is damaged .* 2 lines"):
                finish(corpus, output)
        assert not (output / "a.txt").exists()
        damaged.unlink()
        assert run(corpus, output) == 1
        finish(corpus, output)
    check(output)


class TestAnotherJobIsRefused:
    """By name, and nothing is changed."""

    @pytest.fixture
    def begun(self, source: Path, model: Path, tmp_path: Path) -> Path:
        output = tmp_path / "out"
        with job(output, self.about(source, model, output)):
            run(read(source, output), output, 2)
        return output

    @staticmethod
    def about(
        source: Path, model: Path, output: Path, lines: int = 2, **settings: Any
    ) -> JsonObject:
        seed = settings.pop("seed", 1)
        corpus = read(source, output, lines)
        return describe_job(corpus, make_settings(model, **settings), seed, lines)

    def refused(self, source: Path, model: Path, output: Path, **changes: Any) -> str:
        about = self.about(source, model, output, **changes)
        before = (output / FOLDER / "job.json").read_text()
        with pytest.raises(InferenceError, match=r"was begun with other ") as caught:
            job(output, about).__enter__()
        assert (output / FOLDER / "job.json").read_text() == before
        return str(caught.value).split("with other ")[1].split(";")[0]

    def test_changed_input(self, source: Path, model: Path, begun: Path) -> None:
        (source / "a.txt").write_text("w1\n\nw2\nw3\nw5")
        assert self.refused(source, model, begun) == "input.a.txt.sha256"
        (source / "a.txt").unlink()
        for number in range(5):
            (source / f"{number}").write_text("w1\n")
        differ = self.refused(source, model, begun)
        assert differ == "input.a.txt, input.0, input.1 and 3 more"

    @pytest.mark.parametrize("name", ["verifier.pt", "drafter.pt", "dict.de.txt", "codes"])
    def test_other_models(self, source: Path, model: Path, begun: Path, name: str) -> None:
        (model / name).write_text("another")
        assert self.refused(source, model, begun) == f"models.{name.removesuffix('.pt')}"

    def test_other_settings(self, source: Path, model: Path, begun: Path) -> None:
        for name, value in (("batch", 3), ("precision", "bfloat16"), ("seed", 2)):
            changes: dict[str, Any] = {name: value}
            assert self.refused(source, model, begun, **changes) == f"settings.{name}"
        assert self.refused(source, model, begun, lines=3) == "shard_lines"

    def test_the_same_elsewhere_is_the_same(
        self, source: Path, model: Path, begun: Path, tmp_path: Path
    ) -> None:
        """Folders may be moved between two runs."""
        source = source.rename(tmp_path / "moved")
        model = model.rename(tmp_path / "moved model")
        begun = begun.rename(tmp_path / "moved out")
        with job(begun, self.about(source, model, begun)):
            assert run(read(source, begun), begun) == 3
            finish(read(source, begun), begun)
        check(begun)

    def test_a_drafter_that_is_not_used_does_not_matter(self, model: Path) -> None:
        described = []
        for text in ("one", "two"):
            (model / "drafter.pt").write_text(text)
            settings = dataclasses.replace(make_settings(model), strategy="AR")
            described.append(describe_job([], settings, 1, 2))
        assert described[0] == described[1]

    def test_a_head_is_told_by_its_content(self, model: Path, tmp_path: Path) -> None:
        described = []
        for name, text in (("a", "head"), ("b", "head"), ("c", "another")):
            (tmp_path / name).write_text(text)
            options = AcceptanceHeadController(acceptance_head=str(tmp_path / name))
            described.append(describe_job([], make_settings(model, controller=options), 1, 2))
        assert described[0] == described[1]
        assert differing(described[0], described[2]) == "models.acceptance_head"


def test_differences() -> None:
    first = {"a": 1, "b": {"c": [1], "d": {"e": 2}}, "f": None}
    assert differing(first, json.loads(json.dumps(first))) == ""
    other = {"a": 1, "b": {"c": [2], "d": 3}, "g": 4}
    assert differing(first, other) == "b.c, b.d, g"
