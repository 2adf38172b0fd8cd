"""Text to symbols of a dictionary, and back, by a folder's SentencePiece models."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from specdec_plugins.verifiers.folder import unread

BLANK = "\u2581"
_ESCAPED = re.compile(r"\\u([0-9a-f]{4})")


def symbol_of(piece: str) -> str:
    """Return a piece as a symbol: without white space, at which fairseq splits text."""
    return re.sub(r"\s", lambda match: f"\\u{ord(match[0]):04x}", piece)


def piece_of(symbol: str) -> str:
    """Return the piece of :func:`symbol_of`."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), symbol)


class Pieces:
    """A segmenter of fairseq's form: symbols with blanks between."""

    def __init__(
        self,
        source: Path,
        target: Path,
        left_out: Collection[str],
        split: Callable[[str], tuple[list[str], str]] | None = None,
    ) -> None:
        """
        Args:
            source: a SentencePiece model that cuts text; ``target``: that which joins it.
            left_out: symbols that no text shows.
            split: takes tokens off the beginning of a text.
        """
        self._source = load_pieces(source)
        self._target = load_pieces(target)
        self._left_out, self._split = left_out, split

    def encode(self, x: str) -> str:
        """Return the symbols of a text."""
        first, text = self._split(x) if self._split else ([], x)
        pieces = [*first, *self._source.encode(text, out_type=str)]
        return " ".join(map(symbol_of, pieces))

    def decode(self, x: str) -> str:
        """Return the text of symbols."""
        pieces = [piece_of(symbol) for symbol in x.split() if symbol not in self._left_out]
        text: str = self._target.decode_pieces(pieces)
        return text.replace(BLANK, " ").strip()


def load_pieces(path: Path) -> Any:
    """Return the SentencePiece model of a file."""
    try:
        from sentencepiece import SentencePieceProcessor

        return SentencePieceProcessor(model_file=str(path))
    except (ImportError, OSError, RuntimeError, TypeError) as error:
        raise unread(path, error) from error
