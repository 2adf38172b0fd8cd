"""Our strategies and stock fairseq as systems of an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from specdec_plugins.decoding.drafter_alone import DrafterAlone
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.statistics import COUNTS, DecodingStatistics
from specdec_plugins.decoding.step_result import Judgement, Observer, StepResult
from specdec_plugins.evaluation.worker import Decoded
from specdec_plugins.files.lines import Line
from specdec_plugins.files.output import JsonObject
from specdec_plugins.inference import Settings, Translator, load_translator
from specdec_plugins.inference.translator import Translation


class RowCounts(Observer):
    """Drafted and verified tokens of each row of the last batch."""

    def begin(self, forced: list[int]) -> None:
        self.drafted, self.verified = [0] * len(forced), [0] * len(forced)

    def step(self, result: StepResult, judgement: Judgement | None = None) -> None:
        for row, drafted, verified in zip(result.rows, result.drafted, result.verified):
            self.drafted[row] += drafted
            self.verified[row] += verified


@dataclass
class TranslatorJob:
    """A translator's settings, and the batches to decode."""

    settings: Settings
    batches: Sequence[Sequence[Line]]
    translator: Translator = field(init=False)

    def load(self) -> None:
        """Load the models."""
        self.translator = load_translator(self.settings)

    def decode(self, batches: int, seed: int) -> Decoded:
        """Decode the first ``batches``; a controller keeps what it learns for the next call."""
        generator, counts = self.translator.generator, RowCounts()
        log = generator.statistics = DecodingStatistics()
        ours = False
        if isinstance(generator, SpeculativeGenerator | DrafterAlone):
            generator.observers, ours = [counts], True
        seconds: list[float] = []
        results: list[Translation] = []
        columns: dict[str, list[object]] = {"drafted_tokens": [], "verified_tokens": []}
        for batch in self.batches[:batches]:
            before = log.total_seconds
            results += self.translator.translate(batch, seed=seed)
            seconds.append(log.total_seconds - before)
            if ours:
                columns["drafted_tokens"] += counts.drafted
                columns["verified_tokens"] += counts.verified
        figures: JsonObject = {
            "engine": self.translator.engine,
            "precision": self.translator.arithmetic,
            "block_size": self.translator.block_size,
        }
        if torch.device(self.settings.device).type == "cuda":
            figures["memory"] = torch.cuda.max_memory_allocated()
        if ours:
            figures |= {name: getattr(log, name) for name in COUNTS}
            figures["control_seconds"] = log.stopwatch.seconds().get("control", 0.0)
            columns |= {
                "steps": [len(result.accepted) for result in results],
                "accepted_tokens": [sum(result.accepted) for result in results],
                "committed_tokens": [result.tokens - result.forced for result in results],
                "accepted_by_step": [result.accepted for result in results],
            }
        if self.settings.strategy == "drafter":
            # It accepts without verifying.
            figures |= {"verified_tokens": None, "accepted_tokens": None}
        return Decoded(seconds, [r.text for r in results], columns if ours else {}, figures)
