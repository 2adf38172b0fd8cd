"""Lines in and out: bytes to text, text to dictionary ids, and back.

What becomes of unusual lines:

- an empty or blank line gives an empty line, and no model is run for it;
- a line longer than the encoder has positions for is cut to its first tokens, with a warning that
  names the line;
- a word that is not in the dictionary becomes ``<unk>``, and so do words that spell one of its
  special symbols (``<s>``, ``</s>``, ``<pad>``);
- a line ends at a line feed and nowhere else; a carriage return before it and a byte order mark
  at the start of the input are dropped;
- bytes that are no UTF-8 end the run, after all lines before them.
"""

from __future__ import annotations

import logging
from typing import Protocol

import torch
from fairseq.data import Dictionary
from fairseq.data.data_utils import post_process
from torch import Tensor

from specdec_plugins.files.input import Line

logger = logging.getLogger(__name__)


class Segmenter(Protocol):
    """One of fairseq's tokenizers or BPEs."""

    def encode(self, x: str) -> str:
        """Words, or pieces of them, with blanks between."""
        ...

    def decode(self, x: str) -> str:
        """The text again."""
        ...


class TextCodec:
    """Source text to ids and target ids to text, by a dictionary, a tokenizer and BPE."""

    def __init__(
        self,
        source: Dictionary,
        target: Dictionary,
        longest: int,
        tokenizer: Segmenter | None = None,
        bpe: Segmenter | None = None,
        markers: str | None = None,
        keep_bpe: bool = False,
    ) -> None:
        """
        Args:
            source, target: dictionaries.
            longest: most source tokens, EOS included.
            tokenizer, bpe: fairseq's, or None.
            markers: fairseq's post-processing of the output, before ``bpe`` and ``tokenizer``.
            keep_bpe: put out segmented text as it is.

        Raises:
            ValueError: unknown markers.
        """
        try:
            post_process("", markers)
        except NotImplementedError:
            raise ValueError(f"--post-process {markers}: not known to fairseq") from None
        self.source, self.target, self.longest = source, target, longest
        self.tokenizer, self.bpe = tokenizer, bpe
        self.markers, self.keep_bpe = markers, keep_bpe
        self._special = torch.tensor([source.bos(), source.pad(), source.eos()])
        self._warned = False

    def encode(self, line: Line) -> Tensor | None:
        """``(tokens,)`` ids with EOS at the end; None for a line without words."""
        text = line.text
        if not text.strip():
            return None
        if self.tokenizer is not None:
            text = self.tokenizer.encode(text)
        if self.bpe is not None:
            text = self.bpe.encode(text)
        ids: Tensor = self.source.encode_line(text, add_if_not_exist=False).long()
        words = ids[:-1]
        if len(words) == 0:
            return None
        words[torch.isin(words, self._special)] = self.source.unk()
        if self.bpe is None and not self._warned and bool((words == self.source.unk()).any()):
            self._warned = True
            logger.warning(
                "line %d: holds words that the dictionary lacks; if the text is not segmented yet, "
                "give --tokenizer and --bpe as in training",
                line.number,
            )
        if len(ids) > self.longest:
            logger.warning(
                "line %d: %d tokens are more than the encoder has positions for; cut to the "
                "first %d",
                line.number,
                len(words),
                self.longest - 1,
            )
            ids = torch.cat([words[: self.longest - 1], ids[-1:]])
        return ids

    def decode(self, tokens: Tensor) -> str:
        """The text of a hypothesis."""
        text: str = self.target.string(tokens.cpu(), None if self.keep_bpe else self.markers)
        if not self.keep_bpe:
            if self.bpe is not None:
                text = self.bpe.decode(text)
            if self.tokenizer is not None:
                text = self.tokenizer.decode(text)
        return text
