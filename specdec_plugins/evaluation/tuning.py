"""A trial of the modes in which a pair can be decoded here, in alternating rounds."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice, product
from pathlib import Path
from random import Random

from specdec_plugins.decoding.acceptance import StrictRule
from specdec_plugins.decoding.controllers.simple import NoDrafts
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.engines.choice import ENGINES, engine_name
from specdec_plugins.evaluation.table import STOCK
from specdec_plugins.files.lines import Line
from specdec_plugins.inference.backends import obstacle
from specdec_plugins.inference.loading import load_translator
from specdec_plugins.inference.settings import Settings
from specdec_plugins.inference.systems import AR, parse_system
from specdec_plugins.inference.translator import Translator
from specdec_plugins.inference.tuned_modes import (
    COPY,
    INT8_DRAFTS,
    STEP_BY_STEP,
    TREES,
    Table,
    Timed,
    by_ctranslate2,
    trees,
)
from specdec_plugins.inference.writer_backend import MAX_ROWS

#: A pass of a trial decodes so many lines, or so many batches if that is more.
MIN_LINES = 8
BATCHES = 2
ROUNDS = 5
FINALISTS = 3


def list_modes(settings: Settings) -> list[str]:
    """Return the modes that can be tried here, as systems: stock fairseq, AR, and ours.

    Drafts in int8 are for strict acceptance, whose output does not depend on them.
    """
    modes = bases(settings)
    kind = ""
    if may_write(settings):
        modes.append(STEP_BY_STEP)
    if obstacle(settings) is None:
        modes.append(by_ctranslate2(settings.precision))
    engine = engine_name(settings.engine, settings.precision, settings.device)
    narrower = ENGINES[engine].device == "cpu" and settings.precision != "int8"
    if settings.drafter_precision is None and narrower and settings.rule == StrictRule():
        kind = INT8_DRAFTS
        modes.append(COPY)
    if settings.path:
        modes += trees(kind)
    return modes


def may_write(settings: Settings) -> bool:
    """Return whether the writer may decode ``AR`` in small batches: what it writes, ONNX Runtime
    can write step by step."""
    return settings.precision == "int8" and settings.engine == "auto"


def bases(settings: Settings) -> list[str]:
    """Return the modes that ratios are taken against: stock fairseq, if it has the options, and
    AR."""
    return [STOCK, AR] if settings.limits.repetition_penalty == 1 else [AR]


def rivals(table: Table, settings: Settings, sizes: Sequence[int]) -> list[str]:
    """Return the bases, and the fastest modes of a table at these batch sizes."""
    nearest = (timed.mode for size in sizes for timed in table.at(size)[:FINALISTS])
    return list(dict.fromkeys((*bases(settings), *nearest)))


def example(folder: str) -> str:
    """Return the text of a pair's folder that modes are tried on."""
    texts = sorted(Path(folder).glob("example.*"))
    if len(texts) != 1:
        raise ValueError(f"--input-path: give a text; {folder} has no example.LANG")
    return str(texts[0])


def lines_to_try(lines: Sequence[Line], batch: int, again: bool = False) -> list[Line]:
    """Return the lines of a pass: drawn from the text, since its first ones need not be like the
    rest; of a short text all, repeatedly; no blank ones. ``again``: other lines."""
    mixed = [line for line in Random(1).sample(lines, len(lines)) if line.text.strip()]
    count = max(MIN_LINES, BATCHES * batch)
    return list(islice(cycle(mixed), again * count, (1 + again) * count))


@dataclass
class Trial:
    """Modes that are ready to be timed."""

    settings: Settings
    modes: list[str]
    #: Shows the progress.
    note: Callable[[str], object]
    _translators: dict[str, Translator] = field(default_factory=dict)

    def load(self, sizes: Sequence[int]) -> None:
        """Load all modes for these batch sizes, and leave out those that cannot be loaded here."""
        for batch, mode in product(sizes, list(self.modes)):
            loaded = self._loaded(mode, batch)
            if loaded not in self._translators:
                self.note(f"loading {loaded}")
                settings = replace(self.settings, batch=batch)
                self._translators[loaded] = load_translator(parse_system(loaded, settings))
            if self._translators[loaded].not_by_ctranslate2 is not None and mode in self.modes:
                self.modes.remove(mode)

    def _loaded(self, mode: str, batch: int) -> str:
        """Return the mode whose models serve this one: trees share theirs, and AR drafts nothing
        with them, unless the writer decodes it."""
        written = may_write(self.settings)
        if mode == AR and written and batch <= MAX_ROWS:
            return AR
        if mode in (AR, STEP_BY_STEP):
            alone = STEP_BY_STEP if written else AR
            mode = next((name for name in self.modes if name.startswith("tree")), alone)
        return re.sub(r"tree_nodes=\d+", f"tree_nodes={TREES[0]}", mode)

    def run(self, batch: int, text: Sequence[Line]) -> list[Timed]:
        """Time all modes on a text in rounds; return all, the fastest first.

        After each round the slower half is dropped, but for the bases.
        """
        trials = [
            Timed(mode, [])
            for mode in self.modes
            # In larger batches it is what AR is.
            if mode != STEP_BY_STEP or batch <= MAX_ROWS
        ]
        for timed in trials:
            self.note(f"batch {batch}, warming up: {timed.mode}")
            self._pass(timed.mode, batch, text[:batch])
        running = trials
        for number in range(1, ROUNDS + 1):
            for timed in Random(number).sample(running, len(running)):
                self.note(f"batch {batch}, round {number}: {timed.mode}")
                timed.milliseconds.append(self._pass(timed.mode, batch, text))
            ranked = sorted((t for t in running if t.mode != STOCK), key=lambda t: t.middle)
            half = (len(ranked) + 1) // 2
            fastest = ranked[: max(FINALISTS, half)]
            running = fastest + [t for t in running if t.mode in (STOCK, AR) and t not in fastest]
        # Modes that were dropped come last.
        return sorted(trials, key=lambda t: (-len(t.milliseconds), t.middle))

    def _pass(self, mode: str, batch: int, lines: Sequence[Line]) -> float:
        """Decode all lines in a mode; return milliseconds a sentence, of decoding alone."""
        translator = self._translators[self._loaded(mode, batch)]
        translator.in_batches_of(batch)
        generator = translator.generator
        k = translator.settings.block_size
        if isinstance(generator, SpeculativeGenerator) and k is not None:
            settings = parse_system(mode, self.settings)
            controller = settings.controller if settings.kind else NoDrafts()
            generator.controller = controller.ready(k)
        before = translator.statistics.total_seconds
        for _ in translator.translate(lines):
            pass
        return 1000 * (translator.statistics.total_seconds - before) / len(lines)
