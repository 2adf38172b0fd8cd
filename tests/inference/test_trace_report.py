"""The page made of a trace: its counts and its safety."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from specdec_plugins.cli import trace_report as script
from specdec_plugins.decoding.step_result import StepTrace
from specdec_plugins.inference.trace_file import SentenceTrace
from specdec_plugins.inference.trace_report import (
    TraceTotals,
    build_report,
    reached_slots,
    token_figures,
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
            StepTrace(
                ["a", "b", "c"],
                *(2, 2, "d", 2.0),
                p=[0.5, 0.3, None],
                q=[0.25, 0.6, 1.0],
                p_acc=[1.0, 0.5, None],
                head=[0.875, 0.75, 0.25],
            ),
            StepTrace(["e", "</s>", "f"], 3, 2, None, 3.0),
        ],
    ),
    SentenceTrace("", "", []),
    SentenceTrace("x" * 300, "y", [StepTrace(["q" * 300, "r"], 2, 0, "</s>", 4.0)]),
]


def totals_of(sentences: list[SentenceTrace]) -> TraceTotals:
    totals = TraceTotals()
    for sentence in sentences:
        totals.add(sentence)
    return totals


def test_totals_by_hand() -> None:
    totals = totals_of(SENTENCES)
    counts = totals.statistics
    assert (counts.sentences, totals.blank_lines, counts.steps) == (2, 1, 5)
    assert (counts.drafted_tokens, counts.verified_tokens) == (13, 10)
    assert (counts.accepted_tokens, counts.bonus_tokens, counts.committed_tokens) == (5, 4, 9)
    assert totals.length_bars() == [(1, 2, 5), (2, 2, 5), (3, 1, 5)]
    # Slot 0 is reached by all that verified anything; slot 1 by the three that accepted slot 0;
    # slot 2 by none: one verified no more, one had come to EOS.
    assert totals.slot_bars() == [(0, 3, 4), (1, 2, 3)]


def test_probabilities_by_hand() -> None:
    """Of the tokens that were reached, and of chains: of a tree another token may be drawn."""
    totals = totals_of(SENTENCES)
    assert totals.mean_ratio == (1.0 + 0.5) / 2
    step = SENTENCES[0].steps[2]
    assert token_figures(step, 1) == ["p 0.30", "q 0.60", "p/q 0.50", "head 0.75"]
    assert token_figures(step, 2) == ["q 1.00", "head 0.25"]
    # A trace of an earlier version has none.
    assert token_figures(SENTENCES[0].steps[0], 0) == []
    rejected = StepTrace(["a", "b"], 2, 0, "c", 1.0, p_acc=[0.5, 0.25])
    tree = StepTrace(["a", "b"], 2, 0, "c", 1.0, [-1, -1], p_acc=[0.5, 0.25])
    assert totals_of([SentenceTrace("x", "y", [rejected, tree])]).mean_ratio == 0.5
    assert totals_of([SentenceTrace("x", "y", [tree])]).mean_ratio is None


class Elements(HTMLParser):
    """The tags of a page, and the texts of its token elements by class."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.tokens: list[tuple[str, str]] = []
        self._kind: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        kind = dict(attrs).get("class") or ""
        self._kind = kind.removeprefix("token ") if kind.startswith("token ") else None
        if self._kind is not None:
            self.tokens.append((self._kind, ""))

    def handle_endtag(self, tag: str) -> None:
        self._kind = None

    def handle_data(self, data: str) -> None:
        if self._kind is not None:
            kind, text = self.tokens[-1]
            self.tokens[-1] = (kind, text + data)


LEGEND = [
    ("accepted", "accepted"),
    ("rejected", "rejected"),
    ("unverified", "not verified"),
    ("bonus", "bonus"),
]
TOKENS = [
    ("accepted", EVIL),
    ("rejected", "&amp;"),
    ("rejected", "<i>"),
    ("unverified", "never"),
    ("unverified", "sent"),
    ("bonus", "'\"><b>"),
    ("bonus", "own"),
    ("accepted", "a"),
    ("accepted", "b"),
    ("unverified", "c"),
    ("bonus", "d"),
    ("accepted", "e"),
    ("accepted", "</s>"),
    ("rejected", "f"),
    ("rejected", "q" * 300),
    ("rejected", "r"),
    ("bonus", "</s>"),
]


def test_the_page_shows_every_token_as_what_it_is() -> None:
    page = build_report(SENTENCES, 1000, f"{EVIL}.jsonl")
    elements = Elements(page)
    assert elements.tokens == [*LEGEND, *TOKENS]
    assert not elements.tags & {"script", "img", "link", "iframe", "object", "b", "i", "form"}
    assert not {name for name in elements.attributes if name.startswith("on")}
    assert not elements.attributes & {"src", "href", "style", "action"}
    assert EVIL not in page
    # Nor would an element run that got in.
    assert "content=\"default-src 'none'; style-src" in page
    assert "http:" not in page
    assert "https:" not in page
    assert "url(" not in page
    words = " ".join(re.sub("<[^>]*>", " ", page).split())
    assert "committed tokens 9 = 5 accepted + 4 bonus" in words
    assert "drafted tokens 13 = 5 accepted + 5 rejected + 3 not verified" in words
    assert "acceptance length 1.80" in words
    assert "blank lines, which no step was taken for, not counted: 1" in words
    assert "left out" not in words
    assert "1 67 % 2 of 3 steps" in words
    assert "mean of min(1, p/q) 0.750 over the 2 drafted tokens" in words
    assert "b p 0.30 q 0.60 p/q 0.50 head 0.75" in words


def test_what_is_forced_is_shown_and_counted_apart() -> None:
    forced = SentenceTrace("x", f"{EVIL} b", [StepTrace(["b"], 1, 1, "</s>", 1.0)], [EVIL, "a"])
    page = build_report([forced, SENTENCES[2]], 1000, "run")
    own = [("forced", EVIL), ("forced", "a"), ("accepted", "b"), ("bonus", "</s>")]
    assert Elements(page).tokens == [*LEGEND, ("forced", "forced"), *own, *TOKENS[-3:]]
    assert EVIL not in page
    words = " ".join(re.sub("<[^>]*>", " ", page).split())
    assert "committed tokens 3 = 1 accepted + 2 bonus" in words
    assert "forced tokens 2" in words
    assert "verification rate 1.000 verifier calls, one a step and one for what is forced" in words


def test_the_limit_leaves_sentences_out_and_counts_all() -> None:
    page = build_report(iter(SENTENCES), 1, "run")
    assert "Shown: the first 1 line; left out by --limit: 2." in page
    assert Elements(page).tokens == [*LEGEND, *TOKENS[:14]]
    assert "= 5 accepted + 4 bonus" in page
    assert Elements(build_report(SENTENCES, 0, "run")).tokens == LEGEND


@pytest.mark.parametrize("steps", [[], [StepTrace([], 0, 0, "a", 1.0)]])
def test_nothing_drafted(steps: list[StepTrace]) -> None:
    page = build_report([SentenceTrace("a", "b", steps)], 10, "run")
    assert "Nothing was drafted and verified." in page
    assert page.count("<meter") == len(steps)


# The script


def write_trace(path: Path, sentences: list[SentenceTrace]) -> Path:
    path.write_text("".join(sentence.to_json() + "\n" for sentence in sentences), "utf-8")
    return path


def test_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, page = write_trace(tmp_path / "run.jsonl", SENTENCES), tmp_path / "run.html"
    assert script.main([str(trace), str(page), "--limit", "2"]) == 0
    assert capsys.readouterr() == ("", "")
    assert page.read_text("utf-8") == build_report(SENTENCES, 2, "run.jsonl")


def test_text_that_is_no_unicode(tmp_path: Path) -> None:
    line = json.loads(SENTENCES[0].to_json()) | {"source": "half a pair: \ud800"}
    trace, page = tmp_path / "run.jsonl", tmp_path / "run.html"
    trace.write_text(json.dumps(line) + "\n")
    assert script.main([str(trace), str(page)]) == 0
    assert "half a pair: &#55296;" in page.read_text("utf-8")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["missing", "page"], "missing: cannot be read"),
        (["empty", "page"], "empty: holds no sentence"),
        (["bad", "page"], "bad, line 4: is not JSON"),
        (["run", "."], "OUTPUT .:"),
        (["run", "no/page"], "OUTPUT no/page:"),
        (["run", "./run"], "OUTPUT ./run: is the same file as TRACE run"),
        (["run", "/dev/full"], "/dev/full: cannot be written (No space left"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_script_errors(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    names: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").touch()
    written = write_trace(Path("run"), SENTENCES).read_text()
    Path("bad").write_text(written + "{")
    Path("page").write_text("precious")
    assert script.main(names) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"trace_report.py: {message}")
    assert error.count("\n") == 1
    assert Path("page").read_text() == "precious"
    assert Path("run").read_text() == written


def test_a_name_of_neither_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = write_trace(tmp_path / "run", SENTENCES)
    assert script.main([str(trace), str(tmp_path / "page.png")]) == 1
    assert "page.png: name it .html, the page, or .svg, the picture" in capsys.readouterr().err
    assert not (tmp_path / "page.png").exists()


def test_script_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        script.main(["a", "b", "--limit", "-1"])
    assert stop.value.code == 2
    assert "--limit -1: must be 0 or more" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("accepted", "bonus", "parents", "reached"),
    [
        # The accepted way could have gone on.
        (2, "x", [-1, 0, -1, 1], 3),
        # It could not.
        (2, "x", [-1, 0, -1, 0], 2),
        (0, "x", [-1, -1, 0, 0], 1),
        (2, None, [-1, 0, 1, 1], 2),
        (2, "x", None, 3),
        (4, "x", None, 4),
    ],
)
def test_slots_that_a_step_reached(
    accepted: int, bonus: str | None, parents: list[int] | None, reached: int
) -> None:
    assert reached_slots(StepTrace(list("abcd"), 4, accepted, bonus, 1.0, parents)) == reached


def test_what_fills_a_tree_up_reaches_nothing() -> None:
    """A row of which nothing was left, beside one of which something was."""
    filled = StepTrace(["<pad>", "<pad>"], 2, 0, "x", 1.0, [-1, -1])
    assert reached_slots(filled) == 0
    assert reached_slots(StepTrace(["a", "<pad>"], 2, 1, "x", 1.0, [-1, -1])) == 1
    assert reached_slots(StepTrace(["a", "<pad>"], 2, 0, "x", 1.0, [-1, -1])) == 1
