"""CTranslate2's greedy or beam search as a system. Imports neither torch nor fairseq.

It is run as its users run it: the padding symbol, which no trained verifier prefers, is not banned.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specdec_plugins.evaluation.worker import Decoded, Sentence, Tokens

if TYPE_CHECKING:
    from ctranslate2 import Translator


@dataclass
class CTranslate2Job:
    """A converted model and the batches that it is to decode."""

    #: Its folder.
    model: str
    precision: str
    threads: int
    min_len: int
    beams: int
    lenpen: float
    batches: Sequence[Sequence[Sentence]]
    _translator: Translator = field(init=False)

    def load(self) -> None:
        """Open the model."""
        import ctranslate2

        self._translator = ctranslate2.Translator(
            self.model,
            device="cpu",
            compute_type=self.precision,
            inter_threads=1,
            intra_threads=self.threads,
        )

    def decode(self, batches: int, seed: int) -> Decoded:
        """Decode the first ``batches``; nothing is drawn."""
        outputs: list[Tokens] = []
        decoded = Decoded(0.0, outputs, {"engine": "ctranslate2", "precision": self.precision})
        for batch in self.batches[:batches]:
            start = time.perf_counter()
            results = self._translator.translate_batch(
                [sentence.tokens for sentence in batch],
                beam_size=self.beams,
                length_penalty=self.lenpen,
                # There is one limit for a batch: rows that have a lower one are cut below.
                max_decoding_length=max(sentence.longest for sentence in batch),
                min_decoding_length=self.min_len,
                max_input_length=0,
            )
            decoded.seconds += time.perf_counter() - start
            outputs += [r.hypotheses[0][: s.longest] for r, s in zip(results, batch)]
        return decoded
