"""The text of a benchmark, segmented once for all systems, and their outputs as text."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.evaluation.benchmark.worker import Tokens
from specdec_plugins.evaluation.bleu import References
from specdec_plugins.evaluation.timing import split_by_length
from specdec_plugins.files.input import Line
from specdec_plugins.files.json_object import JsonObject
from specdec_plugins.inference.text import TextCodec


@dataclass(frozen=True)
class Sentences:
    """The lines with words, in the order of the text."""

    lines: Sequence[Line]
    tokens: Sequence[Tokens]
    """Of each line: symbols of the source dictionary."""
    most: Sequence[int]
    """Of each line, the most target tokens, EOS not counted."""
    references: References | None
    """The translation of each line, by which BLEU is counted."""
    codec: TextCodec

    @classmethod
    def of(
        cls,
        lines: Sequence[Line],
        references: References | None,
        codec: TextCodec,
        limits: GenerationLimits,
        positions: int,
    ) -> Sentences:
        """
        Args:
            references: of every line, blank ones too.
            positions: most target tokens of the verifier, EOS included.
        """
        encoded = [(place, codec.encode(line)) for place, line in enumerate(lines)]
        worded = [(place, ids) for place, ids in encoded if ids is not None]
        return cls(
            lines=[lines[place] for place, _ in worded],
            tokens=[[codec.source[i] for i in ids[:-1]] for _, ids in worded],
            most=[limits.most(len(ids), positions) for _, ids in worded],
            references=references
            and replace(references, lines=[references.lines[place] for place, _ in worded]),
            codec=codec,
        )

    def batches(self, size: int) -> list[list[int]]:
        """Places of the sentences in batches of that size, as a sweep has them."""
        return split_by_length([len(tokens) for tokens in self.tokens], size)

    def texts(self, outputs: Sequence[Tokens], batches: Sequence[Sequence[int]]) -> list[str]:
        """Outputs that came batch by batch as text, in the order of the lines."""
        target = self.codec.target
        places = (place for batch in batches for place in batch)
        by_place = dict(zip(places, outputs, strict=True))
        return [
            self.codec.decode(torch.tensor([target.index(s) for s in by_place[i]]).long())
            for i in range(len(self.lines))
        ]

    def describe(self) -> JsonObject:
        """By what the text is known again."""
        source = [line.text for line in self.lines]
        return {
            "lines": len(self.lines),
            "sha256": _digest(source),
            "reference_sha256": self.references and _digest(self.references.lines),
        }


def _digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode("utf-8")).hexdigest()
