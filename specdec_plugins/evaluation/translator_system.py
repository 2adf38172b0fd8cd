"""Our decoders and stock fairseq as systems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from specdec_plugins.decoding.statistics import COUNTS, DecodingStatistics
from specdec_plugins.evaluation.worker import Decoded, Sentence, SentenceFigures
from specdec_plugins.files.output import JsonObject
from specdec_plugins.inference import Settings, Translator, load_translator
from specdec_plugins.inference.systems import DRAFTER
from specdec_plugins.inference.translator import Translation


@dataclass
class TranslatorJob:
    """A translator's settings, and the batches to decode."""

    settings: Settings
    batches: Sequence[Sequence[Sentence]]
    translator: Translator = field(init=False)

    def load(self) -> None:
        """Load the models."""
        self.translator = load_translator(self.settings)

    def decode(self, batches: int, seed: int) -> Decoded:
        """Decode the first ``batches``; a controller keeps what it learns for the next call."""
        translator = self.translator
        log = translator.generator.statistics = DecodingStatistics()
        outputs: list[str] = []
        sentences: list[SentenceFigures] = []
        for batch in self.batches[:batches]:
            before = log.total_seconds
            results = list(translator.translate([item.line for item in batch], seed=seed))
            seconds = round(log.total_seconds - before, 6)
            outputs += [result.text for result in results]
            sentences += [self._figures(result, seconds) for result in results]
        figures: JsonObject = {"engine": translator.engine, "precision": translator.precision}
        if log.phase_seconds:
            figures["parts"] = log.parts()
        if torch.device(self.settings.device).type == "cuda":
            figures["memory"] = torch.cuda.max_memory_allocated()
        if not self.settings.by_fairseq:
            counts = {name: getattr(log, name) for name in COUNTS}
            if self.settings.strategy == DRAFTER:  # which accepts without verifying
                del counts["verified_tokens"], counts["accepted_tokens"]
            elif self.settings.kind is None:
                del counts["drafted_tokens"], counts["verified_tokens"], counts["accepted_tokens"]
            figures["counts"] = counts
        return Decoded(log.total_seconds, outputs, figures, sentences)

    def _figures(self, result: Translation, seconds: float) -> SentenceFigures:
        """Return the figures of a sentence; only speculation calls a verifier on drafts."""
        length = len(result.tokens) - result.forced
        if self.settings.kind is None or self.settings.strategy == DRAFTER:
            return SentenceFigures(seconds, length)
        return SentenceFigures(
            seconds,
            length,
            # Forced tokens have a pass of their own.
            calls=len(result.accepted) + bool(result.forced),
            mismatched=sum(result.verified) - sum(result.accepted),
            verified=list(result.verified),
        )
