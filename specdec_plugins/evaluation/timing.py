"""What inference runs as a system: our strategies, and stock fairseq."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.observers import Observer
from specdec_plugins.decoding.statistics import COUNTS, RATES, DecodingStatistics
from specdec_plugins.decoding.step_result import StepResult
from specdec_plugins.engines.engine import described
from specdec_plugins.engines.openvino_core import computed_precision
from specdec_plugins.evaluation.worker import Decoded
from specdec_plugins.files.lines import Line
from specdec_plugins.files.output import JsonObject
from specdec_plugins.inference import Settings, Translator, load_translator
from specdec_plugins.inference.translator import Translation


class RowCounts(Observer):
    """Drafted and verified tokens of each row of the batch decoded last."""

    def begin(self, forced: list[int]) -> None:
        self.drafted, self.verified = [0] * len(forced), [0] * len(forced)

    def note(self, result: StepResult) -> None:
        for row, *counts in zip(result.rows, result.drafted, result.verified):
            self.drafted[row] += counts[0]
            self.verified[row] += counts[1]


@dataclass
class TranslatorJob:
    """Settings, and the batches to decode."""

    settings: Settings
    batches: Sequence[Sequence[Line]]
    translator: Translator = field(init=False)
    _held: int = 0
    """Bytes of a GPU's memory that it keeps."""

    def load(self) -> None:
        """
        Raises:
            CheckpointError, InferenceError, ValueError: as ``load_translator``.
        """
        before = self._allocated()
        self.translator = load_translator(self.settings)
        self._held = self._allocated() - before

    def _allocated(self) -> int:
        """Bytes of all tensors on the GPU; 0 without one."""
        return torch.cuda.memory_allocated() if self._on_gpu else 0

    @property
    def _on_gpu(self) -> bool:
        return torch.device(self.settings.device).type == "cuda"

    def decode(self, batches: int, seed: int | None = None) -> Decoded:
        """Decodes as a :class:`Job` does. What a controller learns and measures stays with it."""
        generator, counts = self.translator.generator, RowCounts()
        log = generator.statistics = DecodingStatistics()
        if isinstance(generator, SpeculativeGenerator):
            generator.observers = [counts]
        decoded, others = Decoded(), self._allocated() - self._held
        if self._on_gpu:
            torch.cuda.reset_peak_memory_stats()
        results: list[Translation] = []
        drafted, verified = [], []
        for batch in self.batches[:batches]:
            before = log.total_seconds
            results += self.translator.translate(batch, seed=seed)
            decoded.seconds.append(log.total_seconds - before)
            if isinstance(generator, SpeculativeGenerator):
                drafted += counts.drafted
                verified += counts.verified
        if self._on_gpu:
            # Of this system alone, whatever others have there.
            decoded.memory = torch.cuda.max_memory_allocated() - others
            self._held = self._allocated() - others
        decoded.outputs = [result.text for result in results]
        decoded.figures = {
            "engine": self.translator.engine,
            "precision": _arithmetic(self.translator),
            "block_size": self.translator.block_size,
        }
        if isinstance(generator, SpeculativeGenerator):
            generator.observers = []
            decoded.columns = {
                "steps": [len(result.accepted) for result in results],
                "drafted_tokens": drafted,
                "verified_tokens": verified,
                "accepted_tokens": [sum(result.accepted) for result in results],
                "committed_tokens": [result.tokens - result.forced for result in results],
                "accepted_by_step": [result.accepted for result in results],
            }
            decoded.figures |= self._figures(log)
        return decoded

    def _figures(self, log: DecodingStatistics) -> JsonObject:
        counts = {name: getattr(log, name) for name in COUNTS}
        counts["control_seconds"] = log.stopwatch.seconds().get("control", 0.0)
        if self.translator.settings.strategy == "drafter":
            return counts  # it accepts without verifying
        rates = {name: getattr(log, name) for name in RATES}
        unwanted = log.verified_tokens - log.accepted_tokens
        rates["verified_discard_rate"] = unwanted / max(log.committed_tokens, 1)
        return {**counts, **rates}


def _arithmetic(translator: Translator) -> str:
    """What is computed in. What drafts nothing is named like the systems that it is compared
    with."""
    of_drafts = translator.settings.drafter_precision
    if translator.settings.drafts or of_drafts is None:
        return translator.arithmetic
    return described(translator.arithmetic, computed_precision(of_drafts))
