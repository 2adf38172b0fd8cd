"""Trace files: what is written is what is read, and bad ones are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.decoding.step_result import StepTrace
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.inference.trace_file import SentenceTrace, read_trace

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@st.composite
def make_step(draw: st.DrawFn) -> StepTrace:
    drafted = draw(st.lists(text, max_size=5))
    verify = draw(st.integers(0, len(drafted)))
    accepted = draw(st.integers(0, verify))
    bonus = draw(st.none() | text if accepted else text)
    size = len(drafted)
    places = st.lists(st.integers(-1, max(0, size - 1)), min_size=size, max_size=size)
    chance = st.floats(0, 1)
    known, partly = (
        st.none() | st.lists(one, min_size=size, max_size=size)
        for one in (chance, chance | st.none())
    )
    return StepTrace(
        *(drafted, verify, accepted, bonus, draw(st.floats(0, 1e6)), draw(st.none() | places)),
        p=draw(partly),
        q=draw(known),
        p_acc=draw(partly),
        head=draw(known),
    )


sentences = st.builds(
    SentenceTrace, source=text, output=text, steps=st.lists(make_step()), forced=st.lists(text)
)


@given(sentences)
def test_what_is_written_is_read(sentence: SentenceTrace) -> None:
    line = sentence.to_json()
    assert "\n" not in line
    assert SentenceTrace.from_json(line.encode() + b"\n") == sentence


def make_line(step: dict[str, Any] | None = None, **fields: Any) -> str:
    usual = {
        "drafted": ["a", "b"],
        "verify_length": 2,
        "accepted": 1,
        "bonus": "c",
        "milliseconds": 1,
    }
    line = {"source": "x", "output": "y", "steps": [{**usual, **(step or {})}], **fields}
    return json.dumps(line)


GOOD = make_line()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"source": "x", "out', "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("", "is not JSON"),
        ("[]", "Expected `object`, got `array`"),
        ("{}", "missing required field `source`"),
        (make_line(source=None), "got `null` - at `$.source`"),
        (make_line(steps=[*json.loads(GOOD)["steps"], 5]), "got `int` - at `$.steps[1]`"),
        (GOOD.replace("drafted", "draft"), "field `drafted` - at `$.steps[0]`"),
        (make_line({"verify_length": 3}), "`verify_length` is not from 0 to 2"),
        (make_line({"verify_length": -1}), "`verify_length` is not from 0 to 2"),
        (make_line({"verify_length": True}), "got `bool` - at `$.steps[0].verify_length`"),
        (make_line({"verify_length": 0}), "`accepted` is not from 0 to 0"),
        (make_line({"accepted": -1}), "`accepted` is not from 0 to 2"),
        (make_line({"accepted": 1.0}), "got `float` - at `$.steps[0].accepted`"),
        (make_line({"bonus": None, "accepted": 0}), "nothing was committed - at `$.steps[0]`"),
        (make_line({"milliseconds": -1}), "`milliseconds` is no duration"),
        (make_line({"milliseconds": float("nan")}), "`milliseconds` is no duration"),
        (make_line({"milliseconds": float("inf")}), "`milliseconds` is no duration"),
        (make_line({"milliseconds": 10**400}), "is no trace of a sentence"),
        (make_line({"parents": [0]}), "`parents` is no tree"),
        (make_line({"parents": [-1, 2]}), "`parents` is no tree"),
        (make_line({"parents": [-2, 0]}), "`parents` is no tree"),
        (make_line({"p": [0.5]}), "`p` is not of 2 tokens"),
        (make_line({"q": [0.5, None]}), "got `null` - at `$.steps[0].q[1]`"),
        (make_line({"p_acc": [None, 1.5]}), "`p_acc` holds what is no probability"),
        (make_line({"head": [float("nan"), 0]}), "`head` holds what is no probability"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_bad_lines_are_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(f"{GOOD}\n{line}\n{GOOD}\n")
    read = read_trace(str(path))
    assert next(read) == SentenceTrace.from_json(GOOD)
    with pytest.raises(InferenceError) as error:
        next(read)
    assert str(error.value).startswith(f"{path}, line 2: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_torn_line_can_be_resumed(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(GOOD + "\n" + GOOD[:30])
    with pytest.raises(InferenceError, match=r"line 2: is not JSON.*--resume"):
        list(read_trace(str(path)))
    path.write_text(GOOD + "\n" + GOOD)
    assert len(list(read_trace(str(path)))) == 2


def test_files_that_are_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with pytest.raises(InferenceError, match=r"run.jsonl: cannot be read \(No such file"):
        list(read_trace(str(path)))
    with pytest.raises(InferenceError, match="cannot be read"):
        list(read_trace(str(tmp_path)))
    path.touch()
    with pytest.raises(InferenceError, match=r"run.jsonl: holds no sentence"):
        list(read_trace(str(path)))
    path.write_bytes(b'{"source": "\xff"}\n')
    with pytest.raises(InferenceError, match=r"run.jsonl, line 1: is not UTF-8"):
        list(read_trace(str(path)))
