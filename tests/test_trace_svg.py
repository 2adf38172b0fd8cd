"""``scripts/trace_svg.py``: the picture of the first pages is what it draws."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from subprocess import run
from xml.etree import ElementTree

import pytest
from helpers.runs.scripts_here import SCRIPTS, load_script

FIGURES = SCRIPTS.parent / "docs" / "figures"


def test_the_picture_of_the_pages() -> None:
    line = sys.executable, SCRIPTS / "trace_svg.py", FIGURES / "trace.json"
    done = run(line, capture_output=True, check=True, text=True)
    assert done.stdout == (FIGURES / "trace.svg").read_text("utf-8")


def test_a_step_that_was_not_verified_whole(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each token looks as what became of it, and is escaped; a tree ends in one line, and so does
    what is no trace."""
    step = {"drafted": ["<a>", "&", "c"], "verify_length": 2, "accepted": 1, "bonus": "b"}
    step |= {"milliseconds": 1.0, "parents": None}
    trace = tmp_path / "trace.jsonl"
    main = load_script("trace_svg").main
    for parents, status in ((None, 0), ([-1, 0, 0], 1)):
        steps = [{**step, "parents": parents}]
        line = {"source": "<x> & y", "output": "<a> b", "steps": steps}
        trace.write_text(json.dumps(line) + "\n")
        assert main([str(trace)]) == status
        drawn, said = capfd.readouterr()
        if status:
            assert said.endswith("the drafts are trees; trace with --controller constant\n")
            continue
        texts = [x for x in ElementTree.fromstring(drawn).iter() if x.tag.endswith("text")]
        assert [x.text for x in texts[:4]] == ["<x> & y", "<a> b", "2 tokens in 1 steps", "1"]
        looks = {x.text: x.get("fill") for x in texts[4:8]}
        assert looks == {"<a>": None, "b": None, "&": "#82071e", "c": "#57606a"}
    for content, fault in (("", "has no step"), ("no trace\n", "is not the trace of a sentence")):
        trace.write_text(content)
        assert main([str(trace)]) == 1
        said = capfd.readouterr().err
        assert said.count("\n") == 1
        assert fault in said


def test_a_long_sentence_fits_and_one_without_steps_is_passed_over(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Such as a blank first line."""
    step = {"drafted": [], "verify_length": 0, "accepted": 0, "bonus": "b", "parents": None}
    blank = {"source": "", "output": "", "steps": []}
    long = {"source": "x" * 300, "output": "b", "steps": [{**step, "milliseconds": 1.0}]}
    trace = tmp_path / "trace.jsonl"
    trace.write_text(f"{json.dumps(blank)}\n{json.dumps(long)}\n")
    assert load_script("trace_svg").main([str(trace)]) == 0
    drawn = ElementTree.fromstring(capfd.readouterr().out)
    # A letter of DejaVu Sans Mono is 0.602 times as wide as high.
    assert float(drawn.get("width", 0)) > 16 + 300 * 13 * 0.602
