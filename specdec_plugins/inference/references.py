"""Wanted translations, by which one of several outputs is chosen.

Training text that is chosen so lies between the references and what a model says by itself: the
sequence-level interpolation of Kim and Rush (2016, "Sequence-Level Knowledge Distillation",
section 3.3).
"""

from __future__ import annotations

from collections.abc import Sequence

from sacrebleu.metrics.bleu import BLEU

from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.input import InputLines

MARKER = "@@ "
FLAG = "--closest-to"


class LineReferences:
    """The lines of a file, each of which is the reference of the input's line of its number."""

    def __init__(self, path: str) -> None:
        """
        Raises:
            InferenceError: the file cannot be read, or is not UTF-8.
        """
        self.path = path
        with InputLines.open(path, FLAG) as lines:
            self._words = [_words(line.text) for line in lines]
            lines.check()
        # Without effective order a sentence that shares no four words would score by length alone.
        self._metric = BLEU(effective_order=True, tokenize="none")

    def check(self, total: int, name: str) -> None:
        """
        Args:
            total: lines of the input.
            name: what messages call it.

        Raises:
            InferenceError: there are not as many references.
        """
        if total != len(self._words):
            raise InferenceError(
                f"{FLAG} {self.path}: has {len(self._words)} lines, {name} has {total}; give a "
                "reference for every line"
            )

    def closest(self, number: int, outputs: Sequence[str]) -> int:
        """The index of the output with the highest sentence BLEU, of equals the first.

        Args:
            number: the line's, from 1.
            outputs: ordinary text, or text in tokens or subwords, as the references are; markers
                of subwords do not count.

        Raises:
            InferenceError: there is no such line.
        """
        if number > len(self._words):
            raise InferenceError(
                f"{FLAG} {self.path}: has {len(self._words)} lines, and the input has more; give a "
                "reference for every line"
            )
        wanted = [self._words[number - 1]]
        scores = [self._metric.sentence_score(_words(text), wanted).score for text in outputs]
        return scores.index(max(scores))


def _words(text: str) -> str:
    """Text whose subwords are joined."""
    return f"{text} ".replace(MARKER, "").rstrip()
