"""A trial of the ways to decode a pair here, in alternating rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import cycle, islice
from pathlib import Path
from random import Random

from specdec_plugins.decoding.acceptance import StrictRule
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.engines.choice import engine_name
from specdec_plugins.files.lines import Line
from specdec_plugins.inference.ctranslate2_ar import obstacle
from specdec_plugins.inference.ctranslate2_model import is_installed
from specdec_plugins.inference.loading import load_translator
from specdec_plugins.inference.settings import CTRANSLATE2, Settings
from specdec_plugins.inference.translator import Translator
from specdec_plugins.inference.ways import Timed, Way

TREES = (4, 6, 8, 12, 16)
MIN_LINES, BATCHES = 8, 2
"""A pass of a trial decodes so many lines, or so many batches if that is more."""
ROUNDS, FINALISTS = 5, 3
GREEDY = Way()


def list_ways(settings: Settings) -> list[Way]:
    """Return the modes that can be tried here, AR first.

    Drafts in int8 are for strict acceptance, whose output does not depend on them.
    """
    ways = [GREEDY]
    if is_installed() and obstacle(settings) is None:
        ways.append(Way(ar_backend="ctranslate2"))
    precisions = [settings.drafter_precision]
    compiled = engine_name(settings.engine, settings.precision, settings.device) == "openvino"
    narrower = compiled and settings.precision != "int8" and find_spec("nncf") is not None
    if precisions == [None] and narrower and settings.rule == StrictRule():
        precisions.append("int8")
    return ways + [Way(size, precision) for precision in precisions for size in TREES]


def example(folder: str) -> str:
    """Return the text of a pair's folder that modes are tried on."""
    found = sorted(Path(folder).glob("example.*"))
    if len(found) != 1:
        raise ValueError(f"--input-path: give a text; {folder} has no example.LANG")
    return str(found[0])


def lines_to_try(lines: Sequence[Line], batch: int) -> list[Line]:
    """Return the lines of a pass: drawn from the text, since its first ones need not be like the
    rest; of a short text all, repeatedly."""
    mixed = Random(1).sample(lines, len(lines))
    return list(islice(cycle(mixed), max(MIN_LINES, BATCHES * batch)))


@dataclass
class Trial:
    """Modes that are ready to be timed.

    Trees that draft in one precision share their models, and so does AR by our loop.
    """

    settings: Settings
    ways: list[Way]
    note: Callable[[str], object]
    """Is told what is being done."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds to load each kind: compilation, conversion."""
    _translators: dict[Way, Translator] = field(default_factory=dict)

    def load(self) -> None:
        """Load all modes, and leave out those that cannot be loaded here."""
        for way in list(self.ways):
            kind = self._kind(way)
            if kind in self._translators:
                continue
            name = f"trees, {kind.drafter_precision or 'own'} drafts" if kind.tree else str(kind)
            self.note(f"loading {name}")
            begin = time.perf_counter()
            translator = load_translator(kind.applied(self.settings))
            if translator.not_by_ctranslate2 is not None:
                self.ways.remove(way)
                continue
            self._translators[kind] = translator
            self.seconds[name] = time.perf_counter() - begin

    def _kind(self, way: Way) -> Way:
        """Return the first of the modes that have the same models."""
        if way.ar_backend == CTRANSLATE2:
            return way
        drafting = [other for other in self.ways if other.tree]
        if way.tree:
            drafting = [o for o in drafting if o.drafter_precision == way.drafter_precision]
        return next(iter(drafting), way)

    def run(
        self,
        batch: int,
        text: Sequence[Line],
        rounds: int = ROUNDS,
        keep: Sequence[Way] = (GREEDY,),
    ) -> list[Timed]:
        """Time all modes on a text in rounds, after each of which the slower half is dropped.

        Args:
            keep: modes that are never dropped.

        Returns:
            all modes, the fastest first.
        """
        taken: dict[Way, list[float]] = {way: [] for way in self.ways}
        left = list(self.ways)
        for way in left:
            self.note(f"batch {batch}, warming up: {way}")
            if way.ar_backend == CTRANSLATE2 and batch != self._translators[way].settings.batch:
                # It chooses its threads for a batch size when it is loaded.
                here = replace(self.settings, batch=batch)
                self._translators[way] = load_translator(way.applied(here))
            self._pass(way, batch, text)
        for number in range(1, rounds + 1):
            for way in Random(number).sample(left, len(left)):
                self.note(f"batch {batch}, round {number}: {way}")
                taken[way].append(self._pass(way, batch, text))
            timed = sorted((Timed(way, taken[way]) for way in left), key=lambda t: t.middle)
            left = [t.way for t in timed[: max(FINALISTS, (len(left) + 1) // 2)]]
            left += [way for way in keep if way in taken and way not in left]
        # Modes that were dropped come last.
        found = [Timed(way, milliseconds) for way, milliseconds in taken.items()]
        return sorted(found, key=lambda t: (-len(t.milliseconds), t.middle))

    def _pass(self, way: Way, batch: int, lines: Sequence[Line]) -> float:
        """Decode all lines in a mode; return milliseconds a sentence, of decoding alone."""
        translator = self._translators[self._kind(way)]
        translator.settings = replace(translator.settings, batch=batch)
        generator, k = translator.generator, translator.block_size
        if isinstance(generator, SpeculativeGenerator) and k is not None:
            generator.controller = way.applied(self.settings).controller.ready(k)
        before = translator.statistics.total_seconds
        for _ in translator.translate(lines):
            pass
        return 1000 * (translator.statistics.total_seconds - before) / len(lines)
