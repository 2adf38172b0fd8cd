"""The loop around a resident step: the host's work between two of them."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor

from specdec_plugins.decoding.acceptance import Accepted, Scoring
from specdec_plugins.decoding.batch import Results, Rows
from specdec_plugins.decoding.controllers.base import Controller
from specdec_plugins.decoding.drafts.growth import HostLattice
from specdec_plugins.decoding.limits import TokenBans
from specdec_plugins.decoding.resident.state import Kind, Shape
from specdec_plugins.decoding.resident.step import Models, ResidentStep
from specdec_plugins.decoding.step_result import Hypothesis, StepResult
from specdec_plugins.decoding.steps.drafter import CachedDrafter
from specdec_plugins.decoding.steps.encoder import StockEncoder
from specdec_plugins.decoding.steps.verifier import CachedVerifier
from specdec_plugins.engines.cuda_graphs import CudaGraphsEngine, Replay


class Recorded:
    """A resident step with its recordings."""

    def __init__(self, step: ResidentStep, engine: CudaGraphsEngine) -> None:
        self.step, self._engine = step, engine
        # Before it holds anything, since recording runs it.
        self.run = engine.record(step.run, step.state.device)
        self._begin: list[Replay] = []

    def begin(self, tokens: Tensor, limits: list[int]) -> None:
        """Read the sources ``(rows, n)``; for trees, make the first draft."""
        step = self.step
        if not self._begin:
            parts = [step.encode] if step.tree is None else [step.encode, step.draft]
            self._begin = [self._engine.record(part, step.state.device) for part in parts]
        step.begin(tokens, limits)
        for part in self._begin:
            part()


class ResidentLoop:
    """Decodes batches by recorded steps."""

    KEPT = 96
    """The largest number of stored recordings."""

    def __init__(self, models: Models, engine: CudaGraphsEngine) -> None:
        self.models, self.engine = models, engine
        self._recorded: OrderedDict[tuple[Kind, Shape], Recorded] = OrderedDict()

    @classmethod
    def of(
        cls,
        verifier: CachedVerifier,
        drafter: CachedDrafter | None,
        scoring: Scoring,
        bans: TokenBans,
        engine: CudaGraphsEngine,
    ) -> ResidentLoop | None:
        """Return the loop; None, and a note in the engine, if its steps cannot be recorded."""
        encoders = [verifier.encode]
        encoders += [] if drafter is None or drafter.encode is None else [drafter.encode]
        stock = [x for x in encoders if isinstance(x, StockEncoder) and x.recordable]
        if drafter is not None and not drafter.recordable:
            engine.fall_back("the drafter reads whole prefixes at every step")
        elif len(stock) < len(encoders):
            engine.fall_back("an encoder has a forward pass of its own")
        else:
            step = None if drafter is None else drafter.step
            return cls(Models(stock[0], verifier.step, scoring, bans, step, *stock[1:]), engine)
        return None

    def recorded(self, kind: Kind, shape: Shape) -> Recorded:
        """Return a step of these sizes."""
        recorded = self._recorded.pop((kind, shape), None)
        if recorded is None:
            recorded = Recorded(ResidentStep(self.models, kind, shape), self.engine)
        self._recorded[kind, shape] = recorded
        while len(self._recorded) > self.KEPT:
            self._recorded.popitem(last=False)
        return recorded

    def decode(
        self, tokens: Tensor, limits: list[int], controller: Controller, results: Results
    ) -> list[list[Hypothesis]]:
        """Decode the sources ``tokens`` ``(rows, n)`` under a steady controller."""
        length, depth = max(controller.start(len(tokens))), controller.depth
        kind = Kind(min(length, depth), length) if length and depth else Kind(length)
        # Recordings outlive the batch.
        with torch.inference_mode(False), torch.no_grad():
            batch = ResidentBatch(self, kind, tokens, limits)
            return results.decode(batch, [0] * len(tokens), batch.step)


class ResidentBatch(Rows):
    """The unfinished rows, and the index of each in the resident step."""

    def __init__(self, loop: ResidentLoop, kind: Kind, tokens: Tensor, limits: list[int]) -> None:
        super().__init__(limits)
        self._loop, self._sizes, self._kind = loop, loop.engine.buckets, kind
        self._indices = list(self.rows)
        width = self._sizes.positions(2 * kind.slots)
        source = self._sizes.sources(tokens.size(1))
        self._shape = Shape(self._sizes.rows(len(limits)), width, source)
        self._recorded = loop.recorded(kind, self._shape)
        self._recorded.begin(tokens, limits)
        self._lattice: HostLattice | None = None
        if kind.nodes:
            _, self._lattice = self._recorded.step.outcome.read()

    def step(self) -> tuple[StepResult, None]:
        """Make a step, which nobody judges."""
        self._fit()
        step = self._recorded.step
        if self._lattice is not None:
            step.grow(self._lattice, self._indices)
        self._recorded.run()
        committed, self._lattice = step.outcome.read()
        rows, slots, eos = len(self.rows), self._kind.slots - 1, self._loop.models.bans.eos
        names = "committed", "accepted", "tokens", "sources", "scores"
        counts, good, tokens, sources, scores = (committed[name][self._indices] for name in names)
        new: list[int] = counts[:, 0].tolist()
        last = [row[n - 1] for row, n in zip(tokens.tolist(), new)]
        accepted = Accepted(
            torch.from_numpy(tokens),
            torch.from_numpy(sources),
            committed=new,
            accepted=good[:, 0].tolist(),
            verified=[slots] * rows,
            last=last,
            finished=[token == eos for token in last],
        )
        called = [self._kind.block > 0] * rows
        return self.append(accepted, scores.tolist(), [slots] * rows, called), None

    def _fit(self) -> None:
        """Go on in another step if the rows are few enough or too long for the last one."""
        rows, shape = self._sizes.rows(len(self.rows)), self._shape
        positions = self._sizes.positions(max(self.lengths) + self._kind.slots)
        fitting = Shape(rows, max(shape.width, positions), shape.source)
        if fitting == shape:
            return
        recorded = self._loop.recorded(self._kind, fitting)
        recorded.step.state.take(self._recorded.step.state, self._indices)
        if self._lattice is not None:
            (candidates, first, following), there = self._lattice, self._indices
            self._lattice = candidates[there], first[there], following[there]
        self._recorded, self._shape = recorded, fitting
        self._indices = list(range(len(self.rows)))
