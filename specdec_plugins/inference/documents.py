"""Texts as people have them: sentences to translate, and everything between them, which stays."""

from __future__ import annotations

import html
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html.parser import HTMLParser
from itertools import accumulate, chain, pairwise
from textwrap import TextWrapper

from specdec_plugins.files.errors import InferenceError, counted

logger = logging.getLogger(__name__)

#: Elements of HTML whose text is no language.
VERBATIM = ("script", "style", "code", "pre", "kbd", "samp", "var", "textarea")
#: Elements of which no other stands within a paragraph.
BLOCKS = (
    *("address", "article", "aside", "blockquote", "details", "div", "dl", "fieldset", "figure"),
    *("footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "main", "menu", "nav"),
    *("ol", "p", "pre", "section", "table", "ul"),
)
CELLS = ("td", "th", "tr", "tbody", "tfoot")
#: Elements whose end tag may be left out, and what begins after it.
ENDED_BY = {
    "p": BLOCKS,
    "li": ("li",),
    **dict.fromkeys(("dt", "dd"), ("dt", "dd")),
    **dict.fromkeys(("td", "th"), CELLS),
    "tr": CELLS[2:],
    **dict.fromkeys(("thead", "tbody"), CELLS[3:]),
    "option": ("option", "optgroup"),
}
#: Elements without an end tag.
VOID = (
    *("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source"),
    *("track", "wbr"),
)
#: A sentence, and the blanks around it.
BLANKS = re.compile(r"(\s*)((?:\S(?:.*\S)?)?)(\s*)", re.DOTALL)
#: A blank that is not ASCII, such as the no-break space.
WIDE_BLANK = re.compile(r"[^\S\x00-\x7f]")
#: A line end within a text of HTML, where it is a blank.
LINE_END = re.compile(r"(?<=\S)[^\S\r\n]*[\r\n]\s*(?=\S)")
#: A line end of a subtitle.
BREAK = re.compile(r"\r\n?|\n")
#: The line of a subtitle's times, whatever their digits.
TIMES = re.compile(r"\s*\d+:\d+.*-->")
#: Such a line, and the beginning of a text in the next one.
WITH_TEXT = re.compile(r"\d+:\d+[^\r\n]*-->[^\r\n]*(?:\r\n?|\n)[^\S\r\n]*\S")
#: A tag within a subtitle, such as ``<i>`` or ``{\an8}``, and the dash before what somebody says.
TAG = re.compile(r"((?:<[^>]*>|\{\\[^}]*\}|^|[\r\n])[-\u2013\u2014]|<[^>]*>|\{\\[^}]*\})")


@dataclass(frozen=True)
class Document:
    """A text in parts."""

    #: ``"A b. C d.\n"`` is ``["", "A b.", " ", "C d.", "\n"]``: every second one is a sentence.
    parts: Sequence[str]
    #: Makes text of a sentence and its translation.
    written: Callable[[str, str], str] = lambda _sentence, translation: translation

    @property
    def sentences(self) -> Sequence[str]:
        """The sentences, without blanks around them."""
        return self.parts[1::2]

    def joined(self, translations: Sequence[str]) -> str:
        """Return the text with these in place of its sentences."""
        parts = list(self.parts)
        parts[1::2] = map(self.written, self.sentences, translations)
        return "".join(parts)


def plain_document(text: str, language: str, split: bool = True) -> Document:
    """Return a plain text, whose lines are texts of their own.

    ``split``: divide lines into sentences, by the rules of a ``language`` such as ``en``.
    """
    return Document(list(_parts(_stretches(text, language, split))))


def html_document(text: str, language: str, split: bool = True) -> Document:
    """Return a text in HTML: between two tags it is a text of its own, and tags stay.

    An element with ``translate="no"``, scripts, styles and code stay, too.
    """
    parser = _TextFinder(text)
    parser.feed(text)
    parser.close()
    parts = [""]
    for (begin, is_text), (end, _) in pairwise([*parser.begins, (len(text), False)]):
        raw = text[begin:end]
        rest: list[str] = []
        if is_text:
            plain = LINE_END.sub(" ", html.unescape(raw))
            between, *rest = _parts(_stretches(plain, language, split))
        if rest:
            rest[1::2] = map(_escaped, rest[1::2])
            parts[-1] += _escaped(between)
            parts += rest
        else:
            parts[-1] += raw
    return Document(parts, lambda _sentence, translation: _escaped(translation))


def subtitle_document(text: str, kind: str) -> Document:
    """Return subtitles, each of which is a text; numbers, times, tags, notes and styles stay.

    A translation has as many lines as its subtitle, at most.

    Args:
        kind: srt or vtt.

    Raises:
        InferenceError: it is no such text.
    """
    try:
        import webvtt

        # It takes a cue after an empty line or a byte order mark for none.
        readable = re.sub(r"(?m)^\ufeff+", "", BREAK.sub("\n", text)).lstrip("\n")
        captions = webvtt.from_buffer([readable], kind).captions
    except ImportError as error:
        raise InferenceError(
            "subtitles cannot be read; pip install 'specdec-plugins[subtitles]'"
        ) from error
    except webvtt.errors.MalformedFileError as error:
        raise InferenceError(f"is not {kind.upper()}") from error
    escapes = kind == "vtt"  # SRT has no references to characters
    parts = [""]
    end = 0
    unread = 0
    for written in chain.from_iterable(_cues(caption.lines) for caption in captions):
        # They follow a line of times; there may be empty ones among them.
        lines = re.compile(r"[\r\n](" + r"\s*[\r\n]".join(map(re.escape, written)) + ")")
        if cue := lines.search(text, text.index("-->", end)):
            before = text[end : cue.start(1)]
            unread += len(WITH_TEXT.findall(before))
            parts[-1] += before
            end = cue.end()
            for number, stretch in enumerate(TAG.split(cue[1])):
                if number % 2:  # a tag
                    parts[-1] += stretch
                else:
                    between, *rest = _parts([stretch])
                    parts[-1] += between
                    if escapes:
                        rest[::2] = map(html.unescape, rest[::2])
                    parts += rest
    parts[-1] += text[end:]
    unread += len(WITH_TEXT.findall(text[end:]))
    if unread:
        logger.warning(
            "%s: without a number, or with odd times: stays", counted(unread, "subtitle")
        )
    return Document(parts, _wrapped_and_escaped if escapes else _wrapped)


def _cues(lines: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the lines of a cue, and of cues after it whose number or times are odd, which its
    parser takes for text."""
    begin = 0
    for index, line in enumerate(lines):
        if TIMES.match(line):
            numbered = index > begin and not any(map(str.isalpha, lines[index - 1]))
            yield lines[begin : index - 1 if numbered else index]
            begin = index + 1
    yield lines[begin:]


#: Makes a document of a text in a format; sentences are not divided.
FORMATS: Mapping[str, Callable[[str], Document]] = {
    "html": partial(html_document, language="", split=False),
    "srt": partial(subtitle_document, kind="srt"),
    "vtt": partial(subtitle_document, kind="vtt"),
}


def _wrapped(subtitle: str, translation: str) -> str:
    """Return a translation in as many lines as the subtitle has, at most, of about one length."""
    count = len(subtitle.splitlines())
    lines = TextWrapper(
        max(1, len(translation) // count), break_long_words=False, break_on_hyphens=False
    )
    while len(lines.wrap(translation)) > count:
        lines.width += 1
    ends = BREAK.search(subtitle)
    return (ends[0] if ends else "").join(lines.wrap(translation))


def _wrapped_and_escaped(subtitle: str, translation: str) -> str:
    return _escaped(_wrapped(subtitle, translation))


def _escaped(text: str) -> str:
    return html.escape(text, quote=False)


def _parts(stretches: Iterable[str]) -> Iterator[str]:
    """Yield the parts of a text: the first and the last are blanks, or empty."""
    between = ""
    for stretch in stretches:
        match = BLANKS.fullmatch(stretch)
        assert match is not None
        before, words, after = match.groups()
        between += before
        if any(map(str.isalpha, words)):
            yield from (between, words)
            between = after
        else:
            between += words + after
    yield between


def _stretches(text: str, language: str, split: bool) -> Iterable[str]:
    """Return the lines of a text, or their sentences."""
    lines = text.splitlines(keepends=True)
    return chain.from_iterable(map(partial(_sentences, language), lines)) if split else lines


def _sentences(language: str, line: str) -> Sequence[str]:
    try:
        import sentencex
    except ImportError as error:
        raise InferenceError(
            "sentences cannot be told apart; pip install 'specdec-plugins[serve]'"
        ) from error
    # It panics at an initial after a blank of several bytes: "B\xa0.".
    sentences = sentencex.segment(language, WIDE_BLANK.sub(" ", line))
    ends = [0, *accumulate(map(len, sentences))]
    return [line[begin:end] for begin, end in pairwise(ends)]


class _TextFinder(HTMLParser):
    """Finds where the texts of HTML begin and end: in ``<p>A b.</p>`` at 3 and 7."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self._lines = [0, *(match.end() for match in re.finditer("\n", source))]
        #: The indices at which a text that is to be translated begins, True, or anything else.
        self.begins = [(0, False)]
        #: The open elements, the outermost first.
        self._open: list[str] = []
        #: The number of them that are open outside of one that stays; None: there is none.
        self._outside: int | None = None

    def _begin(self, is_text: bool) -> None:
        """Begin with a text or with something else where the parser is."""
        if self.begins[-1][1] != is_text:
            line, column = self.getpos()
            self.begins.append((self._lines[line - 1] + column, is_text))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._begin(False)
        while self._open and tag in ENDED_BY.get(self._open[-1], ()):
            self._end_from(len(self._open) - 1)
        if tag in VOID:
            return
        if self._outside is None:
            translate = dict(attrs).get("translate") or "yes"
            if translate.lower() == "no" or tag in VERBATIM:
                self._outside = len(self._open)
        self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._begin(False)

    def handle_endtag(self, tag: str) -> None:
        self._begin(False)
        if tag in self._open:
            self._end_from(len(self._open) - 1 - self._open[::-1].index(tag))

    def _end_from(self, index: int) -> None:
        """End an open element, and those within it that were not closed."""
        del self._open[index:]
        if self._outside is not None and index <= self._outside:
            self._outside = None

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        """Read what begins with ``<![`` as browsers do: as a comment."""
        return self.parse_bogus_comment(i, report)

    def handle_data(self, data: str) -> None:
        self._begin(self._outside is None)

    def handle_comment(self, data: str) -> None:
        self._begin(False)

    unknown_decl = handle_pi = handle_comment

    def handle_decl(self, decl: str) -> None:
        self._begin(False)
