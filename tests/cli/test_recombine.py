"""``specdec-recombine``: the same lines every time, and its messages."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specdec_plugins.cli import recombine as module

OLD = [
    ["a", "man", "in", "a", "hat", "sits", "on", "a", "wall", "."],
    ["two", "dogs", "sleep", "on", "a", "red", "so@@", "fa", "."],
    ["a", "girl", "in", "a", "red", "dress", "runs", "."],
]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    def run_script(*arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["recombine.py", *map(str, arguments)])
        return module.main()

    return run_script


def test_the_script_writes_the_same_lines_every_time(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "train.en"
    source.write_text("".join(" ".join(words) + "\n" for words in OLD), encoding="utf-8")
    outputs = set()
    for _ in range(2):
        assert run(source, 600) == 0
        output, said = capsys.readouterr()
        made = len(output.splitlines())
        assert (
            said == f"recombine.py: {made} of 600 were made, and no others found; give more text\n"
        )
        outputs.add(output)
    assert len(outputs) == 1
    assert made > 2
    assert run(source, 1) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("count", ["0", "-5", "many", "9" * 5000])
def test_counts_that_are_none(
    run: Callable[..., int], count: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("train.en", count) == 2
    said = capsys.readouterr().err
    assert (
        said
        == f"recombine.py: COUNT {count}: must be a whole number from 1 to 999999999999999999\n"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read ("),
        ("", "holds no sentence; name a text\n"),
        ("\n \n", "holds no sentence; name a text\n"),
    ],
)
def test_a_file_without_sentences_is_named(
    run: Callable[..., int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str | None,
    message: str,
) -> None:
    path = tmp_path / "none.en"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    assert run(path, 5) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"recombine.py: {path}: {message}")
    assert error.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line(
    run: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = tmp_path / "in.en"
    source.write_text("".join(f"a{i} b{i} on c{i} d{i}\n" for i in range(99)))
    # Closed like standard output at the end of Python, when nothing is to be left to write.
    with open("/dev/full", "w") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        assert run(source, 9) == 1
    assert capsys.readouterr().err == (
        "recombine.py: standard output: cannot be written to (No space left on device); make room, "
        "or send it elsewhere\n"
    )
