"""Text to symbols of a dictionary, and back, by a folder's SentencePiece models, or by its BPE of
bytes."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from fairseq.data.encoders.gpt2_bpe_utils import Encoder

from specdec_plugins.verifiers.folder import reading

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

    def __init__(self, source: Path, target: Path, left_out: Collection[str]) -> None:
        """
        Args:
            source: a SentencePiece model that cuts text; ``target``: that which joins it.
            left_out: symbols that no text shows.
        """
        self._source = load_pieces(source)
        self._target = load_pieces(target)
        self._left_out = left_out

    def encode(self, x: str) -> str:
        """Return the symbols of a text."""
        return " ".join(map(symbol_of, self._source.encode(x, out_type=str)))

    def decode(self, x: str) -> str:
        """Return the text of symbols."""
        pieces = [piece_of(symbol) for symbol in x.split() if symbol not in self._left_out]
        return str(self._target.decode_pieces(pieces)).replace(BLANK, " ").strip()


class BytePieces:
    """fairseq's BPE of bytes, GPT-2's; a symbol is the number of its piece in a vocabulary."""

    def __init__(self, vocabulary: dict[str, int], merges: Sequence[tuple[str, ...]]) -> None:
        """
        Args:
            vocabulary: numbers of pieces.
            merges: pairs of pieces that are joined, the first ones first.

        Raises:
            ValueError: the vocabulary lacks a byte, or a joined pair.
        """
        self._bpe = Encoder(vocabulary, merges)
        if missing := {*self._bpe.byte_decoder, *map("".join, merges)} - vocabulary.keys():
            raise ValueError(f"the vocabulary lacks {min(missing)!a}")

    def encode(self, x: str) -> str:
        """Return the symbols of a text."""
        return " ".join(map(str, self._bpe.encode(x)))

    def decode(self, x: str) -> str:
        """Return the text of symbols."""
        return str(self._bpe.decode([int(symbol) for symbol in x.split() if symbol.isdigit()]))


class SavedPieces:
    """The tokenizer of a ``tokenizer.json``, by the package ``tokenizers``."""

    def __init__(self, path: Path) -> None:
        with reading(path):
            from tokenizers import Tokenizer

            self._tokenizer = Tokenizer.from_file(str(path))
        #: The numbers of all tokens.
        self.vocabulary: dict[str, int] = self._tokenizer.get_vocab()

    def encode(self, x: str) -> str:
        """Return the symbols of a text."""
        encoded = self._tokenizer.encode(x, add_special_tokens=False)
        return " ".join(map(symbol_of, encoded.tokens))

    def decode(self, x: str) -> str:
        """Return the text of symbols."""
        known = [
            self.vocabulary[piece] for piece in map(piece_of, x.split()) if piece in self.vocabulary
        ]
        return str(self._tokenizer.decode(known))


def sentencepiece(name: str) -> dict[str, str]:
    """Return fairseq's options of segmentation by a SentencePiece model."""
    return {"tokenizer": "space", "bpe": "sentencepiece", "sentencepiece_model": name}


def load_pieces(path: Path) -> Any:
    """Return the SentencePiece model of a file."""
    with reading(path):
        from sentencepiece import SentencePieceProcessor

        return SentencePieceProcessor(model_file=str(path))
