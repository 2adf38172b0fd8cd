"""Trace files and the page made of them: what is written is read, counted and shown safely."""

from __future__ import annotations

import html
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_plugins.cli import trace_report as script
from specdec_plugins.decoding.step_result import StepTrace
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.inference.trace_page import (
    SentenceTrace,
    branches,
    build_page,
    read_trace,
)

EVIL = "<script>document.title = 'broken into'</script>"
SENTENCES = [
    SentenceTrace(
        f"{EVIL} & co",
        "a&amp;b",
        [
            # One step of each kind: rejection, nothing drafted, all accepted, accepted EOS.
            StepTrace([EVIL, "&amp;", "<i>", "never", "sent"], 3, 1, "'\"><b>", 12.34),
            StepTrace([], 0, 0, "own", 1.0),
            StepTrace(["a", "b", "c"], 2, 2, "d", 2.0, p=[0.5, 0.3, None], q=[0.25, 0.6, 1.0]),
            StepTrace(["e", "</s>", "f"], 3, 2, None, 3.0),
        ],
        sampled=True,
    ),
    SentenceTrace("", "", [], forced=[EVIL]),
    SentenceTrace("x" * 300, "y", [StepTrace(["q" * 300, "r"], 2, 0, "</s>", 4.0)]),
]
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@st.composite
def make_step(draw: st.DrawFn) -> StepTrace:
    drafted = draw(st.lists(text, max_size=5))
    size = len(drafted)
    verify = draw(st.integers(0, size))
    accepted = draw(st.integers(0, verify))
    bonus = draw(st.none() | text if accepted else text)
    parents = st.none() | st.tuples(*(st.integers(-1, i - 1) for i in range(size))).map(list)
    p, q, p_acc = ([draw(st.floats(0, 1)) for _ in drafted] for _ in range(3))
    figures = {"p": p, "q": q, "p_acc": draw(st.sampled_from([None, p_acc]))}
    return StepTrace(drafted, verify, accepted, bonus, 1.0, draw(parents), **figures)


steps = st.lists(make_step())


@given(st.builds(SentenceTrace, source=text, output=text, steps=steps, forced=st.lists(text)))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, sentence: SentenceTrace
) -> None:
    path, line = tmp_path_factory.mktemp("trace") / "run.jsonl", sentence.to_json()
    assert "\n" not in line
    path.write_bytes(line.encode() + b"\n")
    assert list(read_trace(str(path))) == [sentence]


@given(make_step())
def test_every_token_is_drawn_once_after_its_parent(step: StepTrace) -> None:
    lines = branches(step)
    drawn = [index for _, line in lines for index in line]
    assert sorted(drawn) == list(range(len(step.drafted)))
    if step.parents is None:
        assert len(lines) <= 1
        return
    for depth, line in lines:
        for distance, (index, before) in enumerate(zip(line, [None, *line])):
            parent, ancestors = step.parents[index], 0
            assert before is None or parent == before
            while parent >= 0:
                parent, ancestors = step.parents[parent], ancestors + 1
            assert ancestors == depth + distance
            assert step.parents[index] < 0 or drawn.index(step.parents[index]) < drawn.index(index)


def make_line(step: dict[str, object] | None = None, **fields: Any) -> str:
    usual = asdict(StepTrace(["a", "b"], 2, 1, "c", 1.0))
    return json.dumps({"source": "x", "output": "y", "steps": [usual | (step or {})], **fields})


WRONG: list[dict[str, Any]] = [
    *({"verify_length": 3}, {"verify_length": True}, {"accepted": -1}, {"p": [0.5]}),
    *({"bonus": None, "accepted": 0}, {"milliseconds": 10**400}),
    *({"parents": [0]}, {"parents": [1, 0]}, {"p_acc": [0.5]}),
]


def test_bad_lines_are_named(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    bad = ['{"source": "x", "out', "[" * 100_000, "", "{}", '{"source": "\xff"}']
    for line in [*bad, make_line(source=None), *map(make_line, WRONG)]:
        path.write_bytes(f"{make_line()}\n{line}\n".encode("latin-1"))
        read = read_trace(str(path))
        assert next(read) == SentenceTrace("x", "y", [StepTrace(["a", "b"], 2, 1, "c", 1.0)])
        with pytest.raises(InferenceError, match=f"^{path}, line 2: [^\n]*$"):
            next(read)


def tokens_of(page: str) -> list[tuple[str, str]]:
    """The texts of a page's token elements, after those of the legend, by kind."""
    found = re.findall(r'class="token (\w+)">([^<]*)<', page)
    legend = [kind for kind, text in found if text in ("accepted", "not verified", "forced")]
    return [(kind, html.unescape(text)) for kind, text in found[2 + len(legend) :]]


def page_words(page: str) -> list[str]:
    return re.sub("<[^>]*>", " ", page).split()


TOKENS = [
    *[("accepted", EVIL), ("rejected", "&amp;"), ("rejected", "<i>")],
    *[("unverified", "never"), ("unverified", "sent"), ("bonus", "'\"><b>"), ("bonus", "own")],
    *[("accepted", "a"), ("accepted", "b"), ("unverified", "c"), ("bonus", "d")],
    *[("accepted", "e"), ("accepted", "</s>"), ("rejected", "f")],
    ("forced", EVIL),
    *[("rejected", "q" * 300), ("rejected", "r"), ("bonus", "</s>")],
]


def test_the_page_shows_every_token_as_what_it_is() -> None:
    page = build_page(SENTENCES, 1000, f"{EVIL}.jsonl")
    assert tokens_of(page) == TOKENS
    # Nothing of a trace is an element; nor would one run that got in.
    assert EVIL not in page
    elements = r"<(script|img|link|iframe|object|b|i|form)\b|\bon\w+=|https?:|url\("
    assert not re.search(elements, page)
    assert "content=\"default-src 'none'; style-src" in page
    assert {"0.30", "0.60"} < set(page_words(page)), "p and q of b"


def test_trees_and_limits() -> None:
    tree = StepTrace(["a", "b", "c", "d", "e"], 5, 2, "x", 1.0, [-1, 0, 0, 2, -1])
    words = page_words(build_page([SentenceTrace("x", "y", [tree])], 1, "run"))
    assert "a b x · c d e 2" in " ".join(words)
    assert tokens_of(build_page(iter(SENTENCES), 1, "run")) == TOKENS[:14]


def test_acceptance_by_draft() -> None:
    """The first tokens of three drafts, one of them accepted; of a tree the depth counts."""
    chain = StepTrace(["a", "b", "c"], 2, 1, "x", 1.0, p_acc=[0.75, 0.5, 0.25])
    tree = StepTrace(["a", "b", "c", "d"], 4, 0, "x", 1.0, [-1, 0, -1, 1])
    sentence = SentenceTrace("x", "y", [chain, tree, StepTrace(["a"], 1, 0, "x", 1.0)])
    page = build_page([sentence], 1, "run")
    words = " ".join(page_words(page))
    assert "share accepted 1 33 % 1 of 3 drafts 2 0 % 0 of 2 drafts 3 0 % 0 of 1 draft" in words
    assert re.findall(r"<small>(.*?)</small>", page) == [f"p_acc 0.{n}" for n in (75, 50, 25)]
    assert "share accepted" not in build_page([SentenceTrace("", "", [])], 1, "run")


def test_script(tmp_path: Path) -> None:
    """Half a pair of surrogates is shown; a broken trace leaves an older page as it was."""
    trace, page = tmp_path / "run.jsonl", tmp_path / "run.html"
    half = json.loads(SENTENCES[0].to_json()) | {"source": "half a pair: \ud800"}
    trace.write_text(json.dumps(half))
    assert script.main([str(trace), str(page)]) == 0
    written = page.read_bytes()
    assert b"half a pair: &#55296;" in written
    trace.write_text(SENTENCES[0].to_json()[:-9])
    assert script.main([str(trace), str(page)]) == 1
    assert page.read_bytes() == written
