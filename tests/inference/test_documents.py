"""Texts come back as they were, but for their sentences."""

from __future__ import annotations

import html
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import examples
from helpers.runs.inference_runs import make_settings
from hypothesis import example, given
from hypothesis import strategies as st

from specdec_plugins.decoding.acceptance import SamplingRule
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.inference import load_translator
from specdec_plugins.inference.documents import FORMATS, html_document, plain_document

pytest.importorskip("sentencex", reason="sentencex is not installed (extra [serve])")


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("", []),
        (" \n\n", []),
        ("Hello Mr. Smith. How are you?  Fine.\n", ["Hello Mr. Smith.", "How are you?", "Fine."]),
        ("One\r\n\r\n  two\n", ["One", "two"]),
        ("1\n00:00:01,600 --> 00:00:02,000\nHello.\n", ["Hello."]),
    ],
)
def test_plain_text(text: str, sentences: list[str]) -> None:
    document = plain_document(text, "en")
    assert document.sentences == sentences
    assert document.joined(sentences) == text
    numbers = [f"<{number}>" for number in range(len(sentences))]
    assert len(document.joined(numbers).splitlines()) == len(text.splitlines())


def test_lines_stay_whole_if_nobody_splits_them() -> None:
    assert plain_document("One. Two.\nThree.", "en", False).sentences == ["One. Two.", "Three."]


@examples(100)
@example("Ask B\xa0. Then go.", True)  # sentencex panics at it
@given(st.text(st.sampled_from("aB.! ?\n\t\r\u2028\xa0<&>1é")), st.booleans())
def test_any_plain_text_is_joined_again(text: str, split: bool) -> None:
    document = plain_document(text, "en", split)
    assert document.joined(document.sentences) == text
    assert all(sentence == sentence.strip() for sentence in document.sentences)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<p class="a" >Hello.  Go &amp; see</p>', '<p class="a" >HELLO.  GO &amp; SEE</p>'),
        ("a<br/>b<BR>c", "A<br/>B<BR>C"),
        ("<script>if (a<b) go()</script>no", "<script>if (a<b) go()</script>NO"),
        ("<p translate=no>a <i>b</i> c</p>d", "<p translate=no>a <i>b</i> c</p>D"),
        ("<code>a<br>b</code>c", "<code>a<br>b</code>C"),
        ("<!-- a --><!DOCTYPE html>b", "<!-- a --><!DOCTYPE html>B"),
        ("<b>1 &lt; 2</b>", "<b>1 &lt; 2</b>"),
        ("<p>\n  a\n  b\n</p>", "<p>\n  A B\n</p>"),
        ("<p>a. B\nc.</p>\n\n\n", "<p>A. B C.</p>\n\n\n"),
        ("<p>R&D and AT&T</p>Q&A", "<p>R&amp;D AND AT&amp;T</p>Q&amp;A"),
        ("<PRE >x&y z&#65</Pre >a", "<PRE >x&y z&#65</Pre >A"),
        ("a<style>p{}\n<p>b</p>", "A<style>p{}\n<p>b</p>"),
        ("<math><![CDATA[1]]></math>a", "<math><![CDATA[1]]></math>A"),
        ("<?xml a?>b < c", "<?xml a?>B &lt; C"),
        ("a <![ b", "A &lt;![ B"),
        ("<![a[b]]>c", "<![a[b]]>C"),
        ("<p translate=NO>a</p>b\r\n\rc\n", "<p translate=NO>a</p>B C\n"),
        # End tags that may be left out.
        ("<tr><td translate=no>a<td>b<tr><td>c", "<tr><td translate=no>a<td>B<tr><td>C"),
        ("<table><td translate=no>a</table>b", "<table><td translate=no>a</table>B"),
        ("<p>a<p translate=no>b<i>c<h1>d", "<p>A<p translate=no>b<i>c<h1>d"),
        ("<p>a<p translate=no>b<h1>c", "<p>A<p translate=no>b<h1>C"),
        ("<ul translate=no><li>a<li>b</ul>c", "<ul translate=no><li>a<li>b</ul>C"),
        ("<p translate=no>a<br>b</i></p>c", "<p translate=no>a<br>b</i></p>C"),
    ],
)
def test_tags_stay(text: str, expected: str) -> None:
    document = html_document(text, "en")
    assert document.joined([sentence.upper() for sentence in document.sentences]) == expected


@pytest.mark.parametrize("text", ["a" + " " * 20_000 + "a", "a" + "\n" * 20_000, "\t" * 20_000])
def test_blanks_take_no_time(text: str) -> None:
    begin = time.process_time()
    for make in (plain_document, html_document):
        document = make(text, "en")
        assert document.joined(document.sentences) == text
    assert time.process_time() - begin < 1


def test_a_translation_is_no_markup() -> None:
    assert html_document("<p>a</p>", "en").joined(["<script> & more"]) == (
        "<p>&lt;script&gt; &amp; more</p>"
    )


SRT = """1
00:00:01,600 --> 00:00:04,000 X1:1
<i>%s</i>

2
00:00:04,100 --> 00:00:06,000
{\\an8}- %s
- %s

3
00:00:07,000 --> 00:00:08,000
42

4
00:00:07,000 --> 00:00:08,000
%s

"""
VTT = """WEBVTT - a title
Kind: captions

STYLE
::cue { color: red }

NOTE The hat.

left
00:01.600 --> 00:04.000 line:0 align:left
<v Bob>%s</v>

00:05.000 --> 00:06.000 align:left
%s <00:05.500>%s
"""


@pytest.mark.parametrize(
    ("kind", "template", "texts"),
    [
        ("srt", SRT, ["The train leaves,\nand we are late.", "Where?", "There.", "1\none"]),
        ("vtt", VTT, ["left", "left &amp;", "right"]),
    ],
)
def test_texts_of_subtitles(kind: str, template: str, texts: list[str]) -> None:
    """All else stays, byte for byte."""
    pytest.importorskip("webvtt", reason="webvtt is not installed (extra [subtitles])")
    document = FORMATS[kind](template % tuple(texts))
    assert document.sentences == [html.unescape(text) for text in texts]
    numbers = [f"number {number}" for number in range(len(texts))]
    wrapped = [n.replace(" ", "\n") if "\n" in text else n for n, text in zip(numbers, texts)]
    assert document.joined(numbers) == template % tuple(wrapped)


CUE = "1\n00:00:01,000 --> 00:00:02,000\nA dog\nand a cat.\n\n"
ODD_CUE = "00:00:03,000 --> 00:00:04,000\nOne.\n\n"


@pytest.mark.parametrize(
    ("text", "sentences", "unread"),
    [
        (f"\ufeff{CUE}\ufeff{CUE}", 2, 0),
        (f"\n\n{CUE}", 1, 0),
        (f"{CUE}2.\n{ODD_CUE}{CUE}", 3, 0),
        (f"{CUE}2\n00:00:03,000 --> 00:00:04,000\n\n{CUE}", 2, 0),
        (f"2\n00:00:03,000 --> 00:00:04,000\n\nOne.\n\n{CUE}", 2, 0),
        (f"{CUE}{ODD_CUE}{CUE}", 2, 1),
        (f"{CUE}{ODD_CUE}", 1, 1),
        (f"{CUE}2\n00:00:03 --> 00:00:04\nOne.\n\n", 1, 1),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_odd_numbers_and_times(
    end: str, text: str, sentences: int, unread: int, caplog: pytest.LogCaptureFixture
) -> None:
    """None of them is translated, or lost; it is said what is not read."""
    pytest.importorskip("webvtt", reason="webvtt is not installed (extra [subtitles])")
    text = text.replace("\n", end)
    document = FORMATS["srt"](text)
    assert len(document.sentences) == sentences
    assert {*document.sentences} <= {f"A dog{end}and a cat.", "One."}
    upper = document.joined([" ".join(x.split()).upper() for x in document.sentences])
    assert upper.lower().split() == text.lower().split()
    assert upper.count(end) == text.count(end)
    assert caplog.text.count("1 subtitle: without a number, or with odd times: stays") == unread


def test_references_of_webvtt_are_written_again() -> None:
    """SRT has none."""
    pytest.importorskip("webvtt", reason="webvtt is not installed (extra [subtitles])")
    text = VTT % ("1 &lt; a &lt;b&gt;", "c &amp; d", "e")
    document = FORMATS["vtt"](text)
    assert document.sentences == ["1 < a <b>", "c & d", "e"]
    assert document.joined(document.sentences) == text
    assert FORMATS["srt"](SRT % ("a &amp; b", *"cde")).sentences[0] == "a &amp; b"


@pytest.mark.parametrize("kind", ["srt", "vtt"])
def test_files_that_are_no_subtitles(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("webvtt", reason="webvtt is not installed (extra [subtitles])")
    with pytest.raises(InferenceError, match=f"not {kind.upper()}"):
        FORMATS[kind]("Hello.\n")
    monkeypatch.setitem(sys.modules, "webvtt", None)
    with pytest.raises(InferenceError, match=r"\[subtitles\]"):
        FORMATS[kind](SRT % (*"abcd",))


WORD = st.text(st.sampled_from("ab\u00e9,"), min_size=1, max_size=9)


@examples(100)
@given(st.lists(st.lists(WORD, min_size=1), min_size=1, max_size=3), st.lists(WORD, max_size=30))
def test_a_subtitle_keeps_its_number_of_lines(source: list[list[str]], words: list[str]) -> None:
    pytest.importorskip("webvtt", reason="webvtt is not installed (extra [subtitles])")
    lines = ["a " + " ".join(line) for line in source]
    text = "1\n00:00:01,600 --> 00:00:04,000\n" + "\n".join(lines) + "\n"
    output = FORMATS["srt"](text).joined([" ".join(words)]).splitlines()[2:]
    assert len(output) <= len(lines)
    assert " ".join(output).split() == words
    longest = max(map(len, words), default=0)
    assert all(len(line) <= len(" ".join(words)) / len(lines) + longest + 1 for line in output)


@pytest.mark.parametrize("batch", [1, 3])
def test_sentences_of_a_line_are_joined_again(batch: int, world: Path) -> None:
    """Each sentence is translated as a line of its own; so does the command, and a resumed run."""
    options = {"batch": batch, "strategy": "AR", "source_lang": "en", "target_lang": "de"}
    whole = load_translator(make_settings(world, **options))
    split = load_translator(make_settings(world, **options, split_sentences=True))
    lines = ["w1 w2. W3 w4!  W5.", "", " w7 ", "1 2"]
    sentences = ["w1 w2.", "W3 w4!", "W5.", "w7"]
    a, b, c, d = (result.text for result in whole.translate(sentences))
    found = list(split.translate(lines))
    assert [line.text for line in found] == [f"{a} {b}  {c}", "", f" {d} ", "1 2"]
    assert len(found[0].accepted) == sum(len(x.accepted) for x in whole.translate(sentences[:3]))
    assert [line.text for line in split.translate(lines[2:])] == [f" {d} ", "1 2"]
    with pytest.raises(ValueError, match="translate_batch takes whole lines"):
        split.translate_batch(lines)
    begun = replace(split.settings, target_prefix="w3")
    (line,) = load_translator(begun).translate(lines[:1])
    assert line.forced == 3


def test_each_sentence_of_a_line_is_drawn_on_its_own(world: Path) -> None:
    options = {"rule": SamplingRule(), "strategy": "AR", "source_lang": "en", "target_lang": "de"}
    translator = load_translator(make_settings(world, **options, split_sentences=True))
    line = " ".join(["W1 w2 w3."] * 9)
    found, again = (next(iter(translator.translate([line], seed=1))) for _ in range(2))
    assert found.text == again.text
    joined = load_translator(make_settings(world, **options))
    alone = next(iter(joined.translate(["W1 w2 w3."], seed=1))).text
    assert found.text.startswith(f"{alone} ")
    assert found.text != " ".join([alone] * 9)


def test_the_first_unknown_word_of_sentences_is_named_once(
    world: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """However many windows a text has; again in another text."""
    caplog.set_level("WARNING")
    options = {"batch": 1, "strategy": "AR", "source_lang": "en", "target_lang": "de"}
    translator = load_translator(make_settings(world, **options, split_sentences=True))
    for _ in range(2):
        caplog.clear()
        list(translator.translate(["w1", "Never. Heard it.", "unheard", "w3"]))
        (record,) = caplog.records
        assert "line 2: the dictionary lacks" in record.getMessage()


@pytest.mark.parametrize(
    "options",
    [{"trace": True}, {"drafts": "texts"}, {"search_options": {"constraints": "ordered"}}],
)
def test_what_is_of_whole_lines_is_refused(options: dict[str, object], world: Path) -> None:
    with pytest.raises(ValueError, match="--split-sentences"):
        make_settings(world, split_sentences=True, **options)


@examples(100)
@given(st.text(st.sampled_from("ab<>/&;=!-[]' \"\r\np")))
def test_any_markup_is_read(text: str) -> None:
    """Whatever its faults: nothing of what is between tags is lost."""
    document = html_document(text, "en")
    assert len(document.parts) % 2 == 1
    document.joined(document.sentences)
