"""The loop around a resident step: what the host does between two of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor

from specdec_plugins.decoding.acceptance import Scoring
from specdec_plugins.decoding.controllers.base import Controller
from specdec_plugins.decoding.drafts.growth import HostLattice
from specdec_plugins.decoding.limits import TokenBans
from specdec_plugins.decoding.resident.messages import Committed
from specdec_plugins.decoding.resident.state import Kind, Shape
from specdec_plugins.decoding.resident.step import Models, ResidentStep
from specdec_plugins.decoding.results import Results
from specdec_plugins.decoding.statistics import Stopwatch
from specdec_plugins.decoding.step_result import Observer, StepResult
from specdec_plugins.decoding.steps.drafter import CachedDrafter
from specdec_plugins.decoding.steps.encoder import StockEncoder
from specdec_plugins.decoding.steps.verifier import CachedVerifier
from specdec_plugins.engines.cuda_graphs import CudaGraphsEngine, Replay


class Recorded:
    """A resident step with its recordings."""

    def __init__(self, step: ResidentStep, engine: CudaGraphsEngine) -> None:
        self.step, self._engine = step, engine
        self._device = step.state.device
        # Before it holds anything, since recording runs it.
        self.run = engine.record(step.run, self._device)
        self._begin: list[Replay] = []

    def begin(self, tokens: Tensor, limits: list[int]) -> None:
        """Read the sources ``(rows, n)``; for trees, make the first draft."""
        step = self.step
        if not self._begin:
            parts = [step.encode] if step.tree is None else [step.encode, step.draft]
            self._begin = [self._engine.record(part, self._device) for part in parts]
        step.begin(tokens, limits)
        for part in self._begin:
            part()


def obstacle(
    verifier: CachedVerifier, drafter: CachedDrafter | None, controller: Controller
) -> str | None:
    """Return the reason why steps of these cannot be recorded; None if they can."""
    encoders = [verifier.encode] if drafter is None else [verifier.encode, drafter.encode]
    if reason := changing(controller):
        return reason
    if drafter is not None and not drafter.recordable:
        return "the drafter reads whole prefixes at every step"
    for encoder in encoders:
        if encoder is not None and not (isinstance(encoder, StockEncoder) and encoder.recordable):
            return "an encoder has a forward pass of its own"
    return None


def changing(controller: Controller) -> str | None:
    """Return the reason why steps under this controller cannot be recorded; None if they can."""
    if controller.steady:
        return None
    return f"--controller {controller.name} decides anew at every step"


class ResidentLoop:
    """Decodes batches by recorded steps."""

    KEPT = 96
    """The largest number of stored recordings."""

    def __init__(
        self,
        verifier: CachedVerifier,
        drafter: CachedDrafter | None,
        scoring: Scoring,
        bans: TokenBans,
        engine: CudaGraphsEngine,
    ) -> None:
        """Take models that have no :func:`obstacle`."""
        encode, draft_encode = verifier.encode, None if drafter is None else drafter.encode
        assert isinstance(encode, StockEncoder)
        assert draft_encode is None or isinstance(draft_encode, StockEncoder)
        step = None if drafter is None else drafter.step
        self.models = Models(encode, verifier.step, scoring, bans, step, draft_encode)
        self.engine = engine
        self._recorded: OrderedDict[tuple[Kind, Shape], Recorded] = OrderedDict()

    def recorded(self, kind: Kind, shape: Shape) -> Recorded:
        """Return a step of these sizes, with anything in its buffers."""
        recorded = self._recorded.pop((kind, shape), None)
        if recorded is None:
            recorded = Recorded(ResidentStep(self.models, kind, shape), self.engine)
        self._recorded[kind, shape] = recorded
        while len(self._recorded) > self.KEPT:
            self._recorded.popitem(last=False)
        return recorded

    def decode(
        self,
        tokens: Tensor,
        limits: list[int],
        controller: Controller,
        results: Results,
        observers: Sequence[Observer],
        stopwatch: Stopwatch,
    ) -> None:
        """Decode the sources ``tokens`` ``(rows, n)``; their hypotheses are the ``results``.

        Args:
            limits: the largest number of tokens of each row before EOS.
            controller: a steady one.
        """
        kind = _kind(controller, len(tokens))
        # Recordings outlive the batch.
        with torch.inference_mode(False), torch.no_grad():
            with stopwatch("encode", tokens.device):
                batch = ResidentBatch(self, kind, tokens, limits)
            for observer in observers:
                observer.begin([0] * len(tokens))
            while batch.rows:
                result = batch.advance(stopwatch)
                for observer in observers:
                    observer.step(result)
                batch.finish(result, results)


def _kind(controller: Controller, rows: int) -> Kind:
    length, depth = max(controller.start(rows)), controller.depth
    return Kind(min(length, depth), length) if length and depth else Kind(length)


class ResidentBatch:
    """The unfinished rows, and the index of each in the resident step."""

    def __init__(
        self,
        loop: ResidentLoop,
        kind: Kind,
        tokens: Tensor,
        limits: list[int],
    ) -> None:
        self._loop, self._sizes, self._kind = loop, loop.engine.buckets, kind
        self._eos = loop.models.bans.eos
        rows, source = tokens.shape
        self.rows = list(range(rows))
        """The index of each row in the batch as it began."""
        self._indices = list(self.rows)
        self._limits = limits
        self._tokens: list[list[int]] = [[] for _ in self.rows]
        self._scores: list[list[float]] = [[] for _ in self.rows]
        self._slots = kind.slots - 1
        width = self._sizes.positions(2 * kind.slots)
        self._shape = Shape(self._sizes.rows(rows), width, self._sizes.sources(source))
        self._recorded = loop.recorded(kind, self._shape)
        self._recorded.begin(tokens, limits)
        self._lattice: HostLattice | None = None
        if kind.nodes:
            _, self._lattice = self._recorded.step.outcome.read()

    def advance(self, stopwatch: Stopwatch) -> StepResult:
        """Make a step."""
        step = self._recorded.step
        if self._lattice is not None:
            with stopwatch("draft", step.state.device):
                step.grow(self._lattice, self._indices)
        with stopwatch("verify", step.state.device):
            self._recorded.run()
            committed, self._lattice = step.outcome.read()
        return self._result(committed)

    def _result(self, committed: Committed) -> StepResult:
        """Append what was committed, and return the step's result."""
        indices, count = self._indices, len(self.rows)
        counts, accepted = committed.counts.tolist(), committed.accepted.tolist()
        tokens, scores = committed.tokens.tolist(), committed.scores.tolist()
        result = StepResult(
            rows=self.rows,
            drafted=[self._slots] * count,
            called=[self._kind.block > 0] * count,
            verified=[self._slots] * count,
            accepted=[],
            committed=[],
            finished=[],
            last=[],
            lengths=[],
            limited=[],
            verifier_called=True,
            sources=torch.from_numpy(committed.sources[indices]),
        )
        for row, index in zip(self.rows, indices):
            new, length, limit = counts[index], len(self._tokens[row]), self._limits[row]
            self._tokens[row] += tokens[index][:new]
            self._scores[row] += scores[index][:new]
            last = tokens[index][new - 1]
            # An EOS that the length limit forces was not drafted.
            result.accepted.append(min(accepted[index], limit - length))
            result.committed.append(new)
            result.finished.append(last == self._eos)
            result.last.append(last)
            result.lengths.append(length + new)
            result.limited.append(length + new > limit)
        return result

    def finish(self, result: StepResult, results: Results) -> None:
        """Take out the finished rows, and go on with the others, in another step if they are few
        enough or too long for this one."""
        if any(result.finished):
            precision = self._recorded.step.outcome.precision
            for row, finished in zip(self.rows, result.finished):
                if finished:
                    scores = torch.tensor(self._scores[row], dtype=precision)
                    results.finish(row, torch.tensor(self._tokens[row]), scores)
            self.rows = [self.rows[i] for i in result.kept]
            self._indices = [self._indices[i] for i in result.kept]
        if self.rows:
            self._move()

    def _move(self) -> None:
        longest, shape = max(len(self._tokens[row]) for row in self.rows), self._shape
        rows = self._sizes.rows(len(self.rows))
        width = max(shape.width, self._sizes.positions(longest + self._kind.slots))
        fitting = Shape(rows, width, shape.source)
        if fitting == shape:
            return
        recorded = self._loop.recorded(self._kind, fitting)
        recorded.step.state.take(self._recorded.step.state, self._indices)
        if self._lattice is not None:
            candidates, first, following = self._lattice
            there = self._indices
            self._lattice = candidates[there], first[there], following[there]
        self._recorded, self._shape = recorded, fitting
        self._indices = list(range(len(self.rows)))
