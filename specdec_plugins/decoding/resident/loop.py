"""The loop around a resident step: what the host does between two of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec_plugins.decoding.acceptance import Scoring
from specdec_plugins.decoding.controllers.base import Controller
from specdec_plugins.decoding.drafts.growth import HostLattice
from specdec_plugins.decoding.limits import TokenBans
from specdec_plugins.decoding.observers import Observer
from specdec_plugins.decoding.resident.messages import Committed
from specdec_plugins.decoding.resident.state import Kind, Shape
from specdec_plugins.decoding.resident.step import Models, ResidentStep
from specdec_plugins.decoding.results import Results
from specdec_plugins.decoding.statistics import Stopwatch
from specdec_plugins.decoding.step_result import StepResult
from specdec_plugins.decoding.steps.drafter import CachedDrafter
from specdec_plugins.decoding.steps.encoder import StockEncoder
from specdec_plugins.decoding.steps.verifier import CachedVerifier
from specdec_plugins.engines.cuda_graphs import CudaGraphsEngine, Replay


class Recorded:
    """A step whose parts are recorded."""

    def __init__(self, step: ResidentStep, engine: CudaGraphsEngine) -> None:
        self.step, self._engine = step, engine
        self._device = step.state.device
        # Before it holds anything, since recording runs it.
        self.run = engine.record(step.run, self._device)
        self._begin: list[Replay] = []

    def begin(self, tokens: Tensor, limits: list[int]) -> None:
        """Read the sources ``(rows, n)``; of trees, make the first draft."""
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
    """What keeps these from being decoded by recorded steps; None if nothing does."""
    encoders = [verifier.encode] if drafter is None else [verifier.encode, drafter.encode]
    if reason := changing(controller):
        return reason
    if drafter is not None and not drafter.recordable:
        return "the drafter reads whole prefixes at every step"
    if not all(one is None or (isinstance(one, StockEncoder) and one.recordable)
               for one in encoders):  # fmt: skip
        return "an encoder has a forward pass of its own"
    return None


def changing(controller: Controller) -> str | None:
    """What keeps steps under this controller from being recorded; None if nothing does."""
    if controller.steady:
        return None
    return f"--controller {controller.name} decides anew at every step"


class ResidentLoop:
    """Decodes batches by recorded steps."""

    KEPT = 96
    """Recorded steps of other sizes that are kept, at most."""

    def __init__(
        self,
        verifier: CachedVerifier,
        drafter: CachedDrafter | None,
        scoring: Scoring,
        bans: TokenBans,
        engine: CudaGraphsEngine,
    ) -> None:
        """Of models that have no :func:`obstacle`."""
        encode, own = verifier.encode, None if drafter is None else drafter.encode
        assert isinstance(encode, StockEncoder)
        assert own is None or isinstance(own, StockEncoder)
        step = None if drafter is None else drafter.step
        self.models = Models(encode, verifier.step, scoring, bans, step, own)
        self.engine = engine
        self._recorded: OrderedDict[tuple[Kind, Shape], Recorded] = OrderedDict()

    def recorded(self, kind: Kind, shape: Shape) -> Recorded:
        """A step of these sizes, which holds whatever."""
        found = self._recorded.pop((kind, shape), None)
        if found is None:
            found = Recorded(ResidentStep(self.models, kind, shape), self.engine)
        self._recorded[kind, shape] = found
        while len(self._recorded) > self.KEPT:
            self._recorded.popitem(last=False)
        return found

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
            limits: most tokens of each row before EOS.
            controller: a steady one.
        """
        kind = _kind(controller, len(tokens))
        # What is recorded outlives the batch.
        with torch.inference_mode(False), torch.no_grad():
            with stopwatch("encode", tokens.device):
                batch = ResidentBatch(self, kind, tokens, limits)
            for observer in observers:
                observer.begin([0] * len(tokens))
            while batch.rows:
                result = batch.advance(stopwatch)
                for observer in observers:
                    observer.note(result)
                batch.finish(result, results)
        for observer in observers:
            observer.end(results.hypotheses)


def _kind(controller: Controller, rows: int) -> Kind:
    most, depth = max(controller.start(rows)), controller.needs.depth
    return Kind(min(most, depth), most) if most and depth else Kind(most)


class ResidentBatch:
    """The rows that are being decoded, and where in a step each stands."""

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
        """Where each stands in the batch as it began."""
        self._places = list(self.rows)
        self._limits, self._lengths = limits, [0] * rows
        self._tokens: list[list[NDArray[np.int64]]] = [[] for _ in self.rows]
        self._scores: list[list[NDArray[np.floating]]] = [[] for _ in self.rows]
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
                step.grow(self._lattice, self._places)
        with stopwatch("verify", step.state.device):
            self._recorded.run()
            committed, self._lattice = step.outcome.read()
        return self._result(committed)

    def _result(self, committed: Committed) -> StepResult:
        """What became of the rows, whose tokens are kept."""
        eos = self._eos
        before = [self._lengths[row] for row in self.rows]
        counts = committed.counts[self._places].tolist()
        last = []
        for row, place, count in zip(self.rows, self._places, counts):
            self._tokens[row].append(committed.tokens[place, :count].astype(np.int64))
            self._scores[row].append(committed.scores[place, :count].copy())
            self._lengths[row] += count
            last.append(int(committed.tokens[place, count - 1]))
        room = [self._limits[row] - length for row, length in zip(self.rows, before)]
        accepted = committed.accepted[self._places].tolist()
        lengths = [self._lengths[row] for row in self.rows]
        drafted = [self._kind.slots - 1] * len(self.rows)
        return StepResult(
            rows=self.rows,
            drafted=drafted,
            called=[self._kind.block > 0] * len(self.rows),
            verified=drafted,
            # An EOS that the length limit forces was not drafted.
            accepted=[min(pair) for pair in zip(accepted, room)],
            committed=counts,
            finished=[token == eos for token in last],
            last=last,
            lengths=lengths,
            limited=[n > self._limits[row] for n, row in zip(lengths, self.rows)],
            verifier_called=True,
            sources=torch.from_numpy(committed.sources[self._places].astype(np.int64)),
        )

    def finish(self, result: StepResult, results: Results) -> None:
        """Hand out the finished rows, and go on with the others, by another step if there are few
        enough or they are too long."""
        for row, finished in zip(self.rows, result.finished):
            if finished:
                pieces = self._tokens[row], self._scores[row]
                results.finish(row, *(torch.from_numpy(np.concatenate(part)) for part in pieces))
        self.rows = [self.rows[i] for i in result.kept]
        self._places = [self._places[i] for i in result.kept]
        if self.rows:
            self._move()

    def _move(self) -> None:
        longest, shape = max(self._lengths[row] for row in self.rows), self._shape
        rows = self._sizes.rows(len(self.rows))
        width = max(shape.width, self._sizes.positions(longest + self._kind.slots))
        fitting = Shape(rows, width, shape.source)
        if fitting == shape:
            return
        recorded = self._loop.recorded(self._kind, fitting)
        recorded.step.state.take(self._recorded.step.state, self._places)
        if self._lattice is not None:
            candidates, first, following = self._lattice
            there = self._places
            self._lattice = candidates[there], first[there], following[there]
        self._recorded, self._shape = recorded, fitting
        self._places = list(range(len(self.rows)))
