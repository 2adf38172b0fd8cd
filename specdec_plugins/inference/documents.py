"""Texts as people have them: sentences to translate, and everything between them, which stays."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser

from specdec_plugins.files.errors import InferenceError

#: Elements of HTML whose text is no language.
VERBATIM = ("script", "style", "code", "pre", "kbd", "samp", "var", "textarea")
#: Elements without an end tag.
VOID = (
    *("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source"),
    *("track", "wbr"),
)
#: A sentence, and the blanks around it.
BLANKS = re.compile(r"(\s*)(.*?)(\s*)", re.DOTALL)


@dataclass(frozen=True)
class Document:
    """A text in parts."""

    #: ``"A b. C d.\n"`` is ``["", "A b.", " ", "C d.", "\n"]``: every second one is a sentence.
    parts: Sequence[str]
    #: Makes text of a sentence's translation.
    written: Callable[[str], str] = str

    @property
    def sentences(self) -> Sequence[str]:
        """The sentences, without blanks around them."""
        return self.parts[1::2]

    def joined(self, translations: Sequence[str]) -> str:
        """Return the text with these in place of its sentences."""
        parts = list(self.parts)
        parts[1::2] = map(self.written, translations)
        return "".join(parts)


def plain_document(text: str, language: str, split: bool = True) -> Document:
    """Return a plain text, whose lines are texts of their own.

    ``split``: divide lines into sentences, by the rules of a ``language`` such as ``en``.
    """
    return Document(list(_parts(text, language, split)))


def html_document(text: str, language: str, split: bool = True) -> Document:
    """Return a text in HTML: between two tags it is a text of its own, and tags stay.

    An element with ``translate="no"``, scripts, styles and code stay, too.
    """
    parser = _Splitter(language, split)
    parser.feed(text)
    parser.close()
    parser.end_text()
    return Document(parser.parts, _escaped)


def _escaped(text: str) -> str:
    return html.escape(text, quote=False)


def _parts(text: str, language: str, split: bool) -> Iterator[str]:
    """Yield the parts of a text: the first and the last are blanks, or empty."""
    between = ""
    for line in text.splitlines(keepends=True):
        for sentence in _sentences(line, language) if split else [line]:
            match = BLANKS.fullmatch(sentence)
            assert match is not None
            before, words, after = match.groups()
            between += before
            if any(map(str.isalpha, words)):
                yield from (between, words)
                between = after
            else:
                between += words + after
    yield between


def _sentences(line: str, language: str) -> Sequence[str]:
    try:
        import sentencex
    except ImportError as error:
        fault = "sentences cannot be told apart; pip install 'specdec-plugins[serve]'"
        raise InferenceError(fault) from error
    return sentencex.segment(language, line)


class _Splitter(HTMLParser):
    """Divides HTML into parts. Tags and comments are copied; names of end tags in lower case."""

    def __init__(self, language: str, split: bool) -> None:
        super().__init__(convert_charrefs=False)
        self._language, self._split = language, split
        self.parts = [""]
        self._text = ""
        #: The open elements within one that stays, the outermost first.
        self._verbatim: list[str] = []

    def end_text(self) -> None:
        """Divide the text since the last tag."""
        raw, self._text = self._text, ""
        if self._verbatim:
            self.parts[-1] += raw
            return
        first, *rest = _parts(html.unescape(raw), self._language, self._split)
        if rest:
            self.parts[-1] += _escaped(first)
            self.parts += [part if n % 2 == 0 else _escaped(part) for n, part in enumerate(rest)]
        else:
            self.parts[-1] += raw

    def _copy(self, raw: str) -> None:
        self.end_text()
        self.parts[-1] += raw

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._copy(self.get_starttag_text() or "")
        stays = self._verbatim or tag in VERBATIM or ("translate", "no") in attrs
        if stays and tag not in VOID:
            self._verbatim.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._copy(self.get_starttag_text() or "")

    def handle_endtag(self, tag: str) -> None:
        self._copy(f"</{tag}>")
        if tag in self._verbatim:
            # Elements within it that were not closed end, too.
            del self._verbatim[len(self._verbatim) - 1 - self._verbatim[::-1].index(tag) :]

    def handle_data(self, data: str) -> None:
        self._text += data

    def handle_entityref(self, name: str) -> None:
        self._text += f"&{name};"

    def handle_charref(self, name: str) -> None:
        self._text += f"&#{name};"

    def handle_comment(self, data: str) -> None:
        self._copy(f"<!--{data}-->")

    def handle_decl(self, decl: str) -> None:
        self._copy(f"<!{decl}>")

    def unknown_decl(self, data: str) -> None:
        self._copy(f"<![{data}]>")

    def handle_pi(self, data: str) -> None:
        self._copy(f"<?{data}>")
