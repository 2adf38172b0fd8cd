"""Sources made of sources: new, cut only where both have the same word, the same every time."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from specdec_plugins.cli import recombine as module

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "recombine.py"
OLD = [
    ["a", "man", "in", "a", "hat", "sits", "on", "a", "wall", "."],
    ["two", "dogs", "sleep", "on", "a", "red", "so@@", "fa", "."],
    ["a", "girl", "in", "a", "red", "dress", "runs", "."],
]


def test_every_new_sentence_is_two_old_ones_joined_at_a_shared_word() -> None:
    made = module.recombine(OLD, 15)
    assert made
    assert len({tuple(words) for words in made}) == len(made)
    for words in made:
        assert words not in OLD
        assert any(
            words[: j + 1] == first[: j + 1] and words[j:] == second[len(second) - len(words) + j :]
            for j in range(1, len(words))
            for first in OLD
            for second in OLD
        )


def test_joints_inside_words_are_not_cut() -> None:
    for words in module.recombine(OLD, 15):
        for left, right in pairwise(words):
            assert (left == "so@@") == (right == "fa")


def test_the_script_writes_the_same_lines_every_time(tmp_path: Path) -> None:
    source = tmp_path / "train.en"
    source.write_text("".join(" ".join(words) + "\n" for words in OLD), encoding="utf-8")
    command = [sys.executable, str(SCRIPT), str(source), "6"]
    outputs = {subprocess.run(command, capture_output=True, check=True).stdout for _ in range(2)}
    assert len(outputs) == 1
    assert 0 < len(outputs.pop().splitlines()) <= 6


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(tmp_path / "none.en"), "5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "none.en" in done.stderr


def test_a_file_without_sentences_is_named(tmp_path: Path) -> None:
    for text in ("", "\n \n"):
        (tmp_path / "empty.en").write_text(text, encoding="utf-8")
        command = [sys.executable, str(SCRIPT), str(tmp_path / "empty.en"), "5"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert done.stderr == f"recombine.py: {tmp_path}/empty.en: holds no sentence; name a text\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("count", ["9", "999"])
def test_a_full_disk_is_one_line(tmp_path: Path, count: str) -> None:
    source = tmp_path / "in.en"
    source.write_text("".join(f"a{i} b{i} on c{i} d{i}\n" for i in range(99)))
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, SCRIPT, source, count],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == (
        "recombine.py: standard output: cannot be written to (No space left on device); make room\n"
    )
