"""What inference runs as a system: our strategies, and stock fairseq."""

from __future__ import annotations

from dataclasses import dataclass

from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.evaluation.benchmark.worker import Batches, Decoded
from specdec_plugins.files.json_object import JsonObject
from specdec_plugins.inference import Settings, Translator, load_translator


@dataclass(frozen=True)
class TranslatorJob:
    """Settings for text that is segmented, and the batches to decode."""

    settings: Settings
    batches: Batches

    def load(self) -> TranslatorDecoder:
        """
        Raises:
            CheckpointError, InferenceError, ValueError: as ``load_translator``.
        """
        return TranslatorDecoder(load_translator(self.settings), self.batches)


class TranslatorDecoder:
    """A loaded translator."""

    def __init__(self, translator: Translator, batches: Batches) -> None:
        self.translator = translator
        self.batches = [[" ".join(tokens) for tokens in batch] for batch in batches]

    def decode(self, batches: int) -> Decoded:
        """See :class:`Decoder`."""
        log = self.translator.generator.statistics = DecodingStatistics()
        texts = [
            translation.text
            for batch in self.batches[:batches]
            for translation in self.translator.translate(batch)
        ]
        outputs = [[symbol for symbol in text.split(" ") if symbol] for text in texts]
        return Decoded(log.total_seconds, outputs, self._figures(log))

    def _figures(self, log: DecodingStatistics) -> JsonObject:
        k = self.translator.block_size
        if k is None:
            return {}
        return {
            "acceptance_length": log.acceptance_length,
            "verification_rate": log.verification_rate,
            "discard_rate": log.discard_rate,
            "block_size": k,
        }
