"""An experiment's folder: what is kept, what is gone on with, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from experiments import make_run

from specdec_plugins.evaluation.folder import RunFolder, read_runs
from specdec_plugins.files.errors import InferenceError

ABOUT = {"threads": 2, "models": {"verifier": "abc"}, "systems": {"AR": {}}}


def fill(path: Path, *rounds: int) -> None:
    with RunFolder(path, ABOUT) as folder:
        for number in rounds:
            folder.add(make_run(round=number))


def test_nothing_is_begun_before_the_first_run(tmp_path: Path) -> None:
    """Thus what failed on its way there can be corrected."""
    path = tmp_path / "new" / "out"
    with RunFolder(path, ABOUT):
        pass
    with RunFolder(path, {"threads": 1}) as folder:
        folder.add(make_run())
    assert json.loads((path / "experiment.json").read_text()) == {"threads": 1}


def test_runs_are_kept_and_added_to(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2)
    with RunFolder(tmp_path, ABOUT) as folder:
        assert [run.round for run in folder.runs] == [1, 2]
        folder.add(make_run(round=3))
        # Written at once, not when it is left.
        assert [run.round for run in read_runs(tmp_path / "runs.jsonl")] == [1, 2, 3]
        assert [run.round for run in folder.runs] == [1, 2, 3]


def test_half_a_line_is_dropped(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2)
    path = tmp_path / "runs.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    fill(tmp_path, 3)
    assert [run.round for run in read_runs(path)] == [1, 3]
    assert path.read_bytes().startswith(whole.split(b"\n")[0] + b"\n{")


def test_another_experiment_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    before = (tmp_path / "runs.jsonl").read_bytes()
    other = {**ABOUT, "threads": 4, "models": {"verifier": "xyz"}}
    with pytest.raises(InferenceError, match=r"begun with other threads, models.verifier;"):
        RunFolder(tmp_path, other).__enter__()
    assert (tmp_path / "runs.jsonl").read_bytes() == before
    fill(tmp_path, 2)


def test_a_line_that_is_no_run(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    with open(tmp_path / "runs.jsonl", "a") as file:
        file.write("{}\n")
    with pytest.raises(InferenceError, match="line 2: is no run"):
        fill(tmp_path, 2)


def test_one_at_a_time(tmp_path: Path) -> None:
    with (
        RunFolder(tmp_path, ABOUT),
        pytest.raises(InferenceError, match="another run is at work"),
    ):
        RunFolder(tmp_path, ABOUT).__enter__()
    fill(tmp_path, 1)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InferenceError, match=r"--output-path .*file: cannot be written"):
        fill(tmp_path / "file", 1)
