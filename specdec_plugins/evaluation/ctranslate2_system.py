"""CTranslate2's greedy search as a system. Imports neither torch nor fairseq.

It is run as its users run it: the padding symbol, which no trained verifier prefers, is not banned.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specdec_plugins.evaluation.worker import Decoded, Tokens

if TYPE_CHECKING:
    from ctranslate2 import Translator


@dataclass
class CTranslate2Job:
    """A converted model and the batches that it is to decode."""

    model: str
    """Its folder."""
    compute_type: str
    """A precision."""
    threads: int
    batches: Sequence[Sequence[Tokens]]
    longest: Sequence[Sequence[int]]
    """The maximum number of output tokens, without EOS, of every sentence."""
    min_len: int
    _translator: Translator = field(init=False)

    def load(self) -> None:
        """Open the model."""
        import ctranslate2

        about = {"device": "cpu", "compute_type": self.compute_type, "inter_threads": 1}
        self._translator = ctranslate2.Translator(self.model, intra_threads=self.threads, **about)

    def decode(self, batches: int, seed: int) -> Decoded:
        """Decode the first ``batches``; nothing is drawn."""
        seconds: list[float] = []
        outputs: list[Tokens] = []
        for batch, longest in zip(self.batches[:batches], self.longest):
            start = time.perf_counter()
            results = self._translator.translate_batch(
                batch,
                beam_size=1,
                # There is one limit for a batch: rows that have a lower one are cut below.
                max_decoding_length=max(longest),
                min_decoding_length=self.min_len,
                max_input_length=0,
            )
            seconds.append(time.perf_counter() - start)
            outputs += [result.hypotheses[0][:limit] for result, limit in zip(results, longest)]
        return Decoded(
            seconds, outputs, figures={"engine": "ctranslate2", "precision": self.compute_type}
        )
