"""scripts/closest.py: of several outputs the one that is most like the reference."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripts_here import SCRIPTS, load_script, run

closest = load_script("closest").closest
WORDS = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=9).map(" ".join)


@pytest.mark.parametrize(
    ("outputs", "reference", "best"),
    [
        (["x y z w", "a b x d", "a b c d x"], "a b c d", 2),
        (["x y", "e f x", "e f x", "e f y"], "e f", 1),
        (["walk ing home a", "wal@@ king home b"], "walking home", 1),
        (["b", "a"], "a@@", 1),
    ],
    ids=["words in a row", "of equals the first", "subwords are joined", "a marker at the end"],
)
def test_the_closest_is_taken(outputs: list[str], reference: str, best: int) -> None:
    assert closest(outputs, reference) is outputs[best]


@given(st.lists(WORDS, max_size=4), WORDS)
def test_the_reference_itself_is_closest(outputs: list[str], reference: str) -> None:
    assert closest([*outputs, reference], reference) == reference


def choose(tmp_path: Path, outputs: bytes, references: bytes) -> Any:
    (tmp_path / "beam").write_bytes(outputs)
    (tmp_path / "wanted").write_bytes(references)
    return run(sys.executable, SCRIPTS / "closest.py", "beam", "wanted", folder=tmp_path)


def test_each_line_has_the_reference_of_its_number(tmp_path: Path) -> None:
    done = choose(tmp_path, b"x\ta b\n\ny z\tw\n", b"a b\nnothing\nw\n")
    assert (done.returncode, done.stdout) == (0, "a b\n\nw\n")


@pytest.mark.parametrize(
    ("references", "message"),
    [
        (b"a\nb\n", "wanted: has 2 lines, beam has 1; give a reference for every line"),
        (b"\xe4\n", "wanted: is not UTF-8"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, references: bytes, message: str) -> None:
    done = choose(tmp_path, b"a\tb\n", references)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"closest.py: {message}")
    assert done.stderr.count("\n") == 1
