"""A sentence's picture: what stands in it, and how."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest

from specdec_plugins.cli import trace_report as script
from specdec_plugins.decoding.step_result import StepTrace
from specdec_plugins.inference.trace_file import SentenceTrace
from specdec_plugins.inference.trace_picture import KINDS, MARGIN, WIDTH, draw_sentence
from specdec_plugins.inference.trace_report import build_report

SVG = "{http://www.w3.org/2000/svg}"
EVIL = "<script>\x07&\ud800"


def sentence(*steps: StepTrace) -> SentenceTrace:
    return SentenceTrace(f"the {EVIL} source", "the output", list(steps))


def boxes(picture: str) -> list[tuple[str, str, float, float]]:
    """Kind, text, left side and width, the legend's last."""
    root = ET.fromstring(picture)
    drawn = [rect for rect in root.iter(f"{SVG}rect") if rect.get("class")]
    texts = list(root.iter(f"{SVG}text"))[-len(drawn) :]
    return [
        (str(r.get("class")), str(t.text), float(str(r.get("x"))), float(str(r.get("width"))))
        for r, t in zip(drawn, texts, strict=True)
    ]


def test_every_token_has_a_box_of_its_kind() -> None:
    step = StepTrace(["a", EVIL, "c", "d"], 3, 1, "own", 1.0)
    last = StepTrace(["x", "</s>"], 2, 2, None, 1.0)
    found = [box[:2] for box in boxes(draw_sentence(sentence(step, last)))]
    evil = EVIL.replace("\x07", "\ufffd").replace("\ud800", "\ufffd")
    assert found == [
        ("accepted", "a"),
        ("bonus", "own"),
        ("rejected", evil),
        ("rejected", "c"),
        ("unread", "d"),
        ("accepted", "x"),
        ("accepted", "</s>"),
        *((kind, kind) for kind in KINDS),
    ]


def test_the_picture_and_the_page_have_the_same_colours() -> None:
    """And both count one step as one."""
    one = sentence(StepTrace(["a", "b", "c"], 2, 1, "own", 1.0))
    picture, page = draw_sentence(one), build_report([one], 1, "run")
    for kind in ("accepted", "rejected", "bonus"):
        (style,) = re.findall(rf"^    \.{kind} {{ (.*) }}$", picture, re.M)
        colours = re.findall(r"#[0-9a-f]{6}", style)
        for name, colour in zip((kind, f"{kind}-line"), colours, strict=True):
            assert f"--{name}: {colour};" in page
    assert "2 tokens in 1 step<" in picture
    assert "1 step, 2 tokens, 2.00 a step" in " ".join(page.split())


def test_what_is_forced_stands_before_the_steps() -> None:
    step = StepTrace(["a"], 1, 1, "own", 1.0)
    forced = SentenceTrace("the source", "the output", [step], ["__de__", EVIL])
    drawn = boxes(draw_sentence(forced))
    assert [kind for kind, *_ in drawn[:4]] == ["forced", "forced", "accepted", "bonus"]
    assert drawn[0][1] == "__de__"
    assert drawn[-1][:2] == ("forced", "forced")


def test_boxes_stay_inside_and_apart() -> None:
    step = StepTrace(["word" * (1 + n % 5) for n in range(40)], 40, 7, "own", 1.0)
    found = boxes(draw_sentence(sentence(step)))
    assert all(x >= MARGIN and x + width <= WIDTH - MARGIN for _, _, x, width in found)
    for (_, _, x, width), (_, _, following, _) in pairwise(found):
        assert following > x + width or following < x


def test_the_command_draws_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, picture = tmp_path / "t.jsonl", tmp_path / "t.svg"
    step = StepTrace(["second"], 1, 1, "own", 1.0)
    lines = [SentenceTrace("", "", []), SentenceTrace("s", "o", [step])]
    trace.write_text("".join(line.to_json() + "\n" for line in lines), "utf-8")
    assert script.main([str(trace), str(picture), "--line", "2"]) == 0
    assert boxes(picture.read_text("utf-8"))[0][:2] == ("accepted", "second")
    before = picture.read_bytes()
    for line, fault in (("1", "has no words, and no steps to draw"), ("3", "only 2 lines")):
        assert script.main([str(trace), str(picture), "--line", line]) == 1
        assert fault in capsys.readouterr().err
    assert picture.read_bytes() == before
