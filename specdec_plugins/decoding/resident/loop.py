"""The loop around a resident step: the host's work between two of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import torch

from specdec_plugins.decoding.acceptance import Accepted, Scoring
from specdec_plugins.decoding.batch import Rows
from specdec_plugins.decoding.controllers.base import Controller
from specdec_plugins.decoding.hypotheses import Hypotheses
from specdec_plugins.decoding.limits import TokenBans
from specdec_plugins.decoding.resident.state import Kind, Sentence, Shape
from specdec_plugins.decoding.resident.step import Models, ResidentStep
from specdec_plugins.decoding.step_result import Hypothesis, StepResult
from specdec_plugins.decoding.steps.drafter import CachedDrafter
from specdec_plugins.decoding.steps.encoder import StockEncoder
from specdec_plugins.decoding.steps.verifier import CachedVerifier
from specdec_plugins.engines.engine import Recorder, bucket


class ResidentLoop:
    """Decodes batches by recorded steps."""

    def __init__(
        self,
        verifier: CachedVerifier,
        drafter: CachedDrafter | None,
        scoring: Scoring,
        bans: TokenBans,
        engine: Recorder,
    ) -> None:
        #: The reason why no batch can be decoded.
        self.obstacle = None
        step = None
        encoders = [verifier.encode]
        if drafter is not None:
            step = drafter.step
            if drafter.encode is not None:
                encoders.append(drafter.encode)
        stock = [x for x in encoders if isinstance(x, StockEncoder) and x.recordable]
        if len(stock) < len(encoders):
            self.obstacle = "an encoder has a forward pass of its own"
        if drafter is not None and not drafter.recordable:
            self.obstacle = "the drafter reads whole prefixes at every step"
        self.models = Models(stock, verifier.step, scoring, bans, step)
        self.engine = engine
        self.recorded = lru_cache(maxsize=96)(partial(ResidentStep, self.models, engine))
        #: Rows of all steps so far, idle ones included.
        self.row_steps = 0

    def decode(
        self, sentences: list[Sentence], rows: int, controller: Controller, hypotheses: Hypotheses
    ) -> list[list[Hypothesis]]:
        """Decode sentences, at most so many ``rows`` at once, under a steady controller."""
        rows = min(rows, len(sentences))
        length = max(controller.first_lengths(rows))
        kind = Kind(length)
        if length and controller.trees:
            kind = Kind(min(length, controller.block_size), length)
        # Recordings outlive the batch.
        with torch.inference_mode(False), torch.no_grad():
            batch = ResidentBatch(self, kind, tuple(sentences), rows, not hypotheses.may_end_rows)
            return hypotheses.of(batch, [0] * len(sentences), batch.steps())


class ResidentBatch(Rows):
    """The sentences that are being decoded, and the row of each in the resident step.

    Where one ends, the next that waits begins: the longest first, so that shapes get smaller.
    """

    COLUMNS = (*Rows.COLUMNS, "_indices", "_sources")

    def __init__(
        self,
        loop: ResidentLoop,
        kind: Kind,
        sentences: tuple[Sentence, ...],
        rows: int,
        ahead: bool,
    ) -> None:
        """``ahead``: nobody but EOS ends a row, so that the next step may be made meanwhile."""
        super().__init__([], loop.models.bans.eos)
        self._loop = loop
        self._sizes = loop.engine.buckets
        self._kind = kind
        self._sentences = sentences
        lengths = [len(source) for source, _ in sentences]
        self._waiting = deque(sorted(range(len(lengths)), key=lambda i: -lengths[i]))
        #: Sentences that were read and have not begun, and their rows of the step that read.
        self._read = deque[tuple[int, int]]()
        #: The row of each sentence, and its source length.
        self._indices = list[int]()
        self._sources = list[int]()
        self._ahead = ahead
        self._launched = False
        width = bucket(self._sizes.width, 2 * kind.slots)
        source = bucket(self._sizes.source, max(lengths))
        self._use(Shape(bucket(1, rows), width, source))
        self._fill(list(range(self._shape.rows)))

    def steps(self) -> Iterator[tuple[StepResult, None]]:
        """Yield what each step commits, which nobody judges, until all sentences have ended."""
        while self.rows:
            result = self._step_result()
            yield result, None
            if any(result.finished):
                self.select(result.kept)

    def _step_result(self) -> StepResult:
        """Make a step."""
        if not self._launched:
            self._fit()
            self._launch()
        outcome = self._step.outcome.read()
        rows = len(self.rows)
        index = np.array(self._indices)
        committed, accepted, tokens, sources, scores = (
            outcome[name].take(index, 0)
            for name in ("committed", "accepted", "tokens", "sources", "scores")
        )
        # A device makes the next step while the host deals with this one, if nothing ends with it.
        fits = max(self.lengths) + 3 * self._kind.slots <= self._shape.width
        self._launched = self._ahead and fits and self._eos not in tokens
        if self._launched:
            self._launch()
        verified = [self._kind.slots - 1] * rows
        result = Accepted(
            torch.from_numpy(tokens),
            torch.from_numpy(sources),
            committed.ravel().tolist(),
            accepted.ravel().tolist(),
            verified,
        )
        return self.append(result, scores.tolist(), verified, [self._kind.block > 0] * rows)

    def _launch(self) -> None:
        if self._kind.nodes:
            self._step.grow()
        self._step.run()
        self._loop.row_steps += self._shape.rows

    def select(self, rows: list[int]) -> None:
        """Go on with ``rows``, and begin with others in place of the rest."""
        free = [index for i, index in enumerate(self._indices) if i not in rows]
        super().select(rows)
        self._fill(free)

    def _fill(self, free: list[int]) -> None:
        """Begin with sentences that wait in the rows ``free``."""
        while free and (self._read or self._waiting):
            if not self._read:
                self._read_some()
            count = min(len(free), len(self._read))
            begun = [self._read.popleft() for _ in range(count)]
            sentences, rows = map(list, zip(*begun))
            self._step.take(self._reader, rows, free[:count])
            self._indices += free[:count]
            free = free[count:]
            self.rows += sentences
            self.max_lengths += [self._sentences[i][1] for i in sentences]
            self._sources += [len(self._sentences[i][0]) for i in sentences]
            self.lengths += [0] * count
            self.last += [self._eos] * count
            for values in (self.tokens, self.scores):
                values += [[] for _ in sentences]

    def _read_some(self) -> None:
        """Read as many of the sources that wait as the step has rows."""
        rows = range(min(self._shape.rows, len(self._waiting)))
        sentences = [self._waiting.popleft() for _ in rows]
        self._reader = self._loop.recorded(self._kind, replace(self._shape, width=0))
        self._reader.begin([self._sentences[i] for i in sentences])
        self._reader.run()
        if self._kind.nodes:
            self._reader.outcome.read()
        self._read.extend(zip(sentences, rows))

    def _use(self, shape: Shape) -> None:
        """Go on in a step of these sizes, which has no sentences yet."""
        self._shape = shape
        self._step = self._loop.recorded(self._kind, shape)
        self._step.state.going.zero_()
        self._step.state.counts.zero_()  # they may be of rows that grew out of these sizes

    def _fit(self) -> None:
        """Go on in another step if there are fewer or shorter sentences, or longer outputs."""
        shape = self._shape
        slots = self._kind.slots
        source = bucket(self._sizes.source, max(self._sources))
        width = shape.width if source == shape.source else 0
        positions = bucket(self._sizes.width, max(*self.lengths, slots) + slots)
        fitting = Shape(bucket(1, len(self.rows)), max(width, positions), source)
        if fitting != shape:
            step = self._step
            rows = self._indices
            self._use(fitting)
            self._indices = list(range(len(rows)))
            self._step.take(step, rows, self._indices)
