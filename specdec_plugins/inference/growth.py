"""The texts of sentences that are being decoded, word by word."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from specdec_plugins.files.errors import InferenceError
from specdec_plugins.inference.text import TextCodec

#: The end of a text that later tokens may change: the last word, and the blank before it. Chinese
#: and Japanese have no blanks, and their characters do not change.
UNFINISHED = re.compile(r"\s*[^\s\u3000-\u9fff]*$")


class Piece(NamedTuple):
    """A piece of an output, which later ones are appended to."""

    text: str
    #: True if it was drafted and accepted; False if it is the verifier's own, or forced.
    accepted: bool
    #: The number of characters of the output before it.
    begin: int


@dataclass
class GrowingText:
    """The output of a line, of which each step adds some words.

    If steps commit ``Ein Ha@@``, ``us ste@@`` and ``ht`` with EOS, its pieces are ``Ein``,
    `` Haus`` and `` steht``: a word is held back until another one begins.
    """

    codec: TextCodec
    #: Is given each piece at once.
    take: Callable[[Piece], object]
    #: Committed tokens, forced ones included.
    tokens: list[int]
    #: The number of characters that were handed out.
    length: int = 0
    #: The lengths of the text after accepted tokens, and after others, up to which it is not yet.
    ends: list[tuple[int, bool]] = field(default_factory=list)
    #: The error by which ``take`` ended this line alone.
    fault: InferenceError | None = None

    def commit(self, before: int, new: list[int], accepted: int) -> bool:
        """Append a step's tokens, the first of which were ``accepted``, after ``before`` others.

        Return whether the line goes on.
        """
        for count in sorted({accepted, len(new)} - {0}):
            self.tokens[before:] = new[:count]
            text = self.codec.decode(torch.tensor(self.tokens))
            self.ends.append((len(text), count == accepted))
        self._give(UNFINISHED.sub("", text))
        return self.fault is None

    def end(self, text: str) -> None:
        """Give the rest of the whole ``text``: all of it where no step was seen."""
        self.ends.append((len(text), False))
        self._give(text)

    def _give(self, text: str) -> None:
        for end, accepted in self.ends:
            piece = text[self.length : end]
            if piece and self.fault is None:
                self.length += len(piece)
                try:
                    self.take(Piece(piece, accepted, self.length - len(piece)))
                except InferenceError as error:
                    self.fault = error
                except (AssertionError, IndexError) as error:
                    # These would be taken for the model's.
                    raise RuntimeError(f"on_piece: {error}") from error
        self.ends = [(end, accepted) for end, accepted in self.ends if end > self.length]
