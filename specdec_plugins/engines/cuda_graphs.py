"""Steps replayed as CUDA graphs: a step's kernels are launched at once. No fairseq in here."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from specdec_plugins.engines.eager import EagerEngine

logger = logging.getLogger(__name__)

Replay = Callable[[], None]
"""A function of tensors that never move, or what has been recorded of one."""


@dataclass(frozen=True)
class Buckets:
    """The few sizes of what is recorded: each twice the one before it."""

    width: int = 128
    """Positions of the smallest cache."""
    source: int = 32
    """Tokens of the shortest source."""

    def rows(self, rows: int) -> int:
        """Rows of a batch."""
        return 1 << (rows - 1).bit_length()

    def positions(self, count: int) -> int:
        """Positions of a cache that has room for so many."""
        return _doubled(self.width, count)

    def sources(self, tokens: int) -> int:
        """Source tokens."""
        return _doubled(self.source, tokens)


def _doubled(size: int, least: int) -> int:
    while size < least:
        size *= 2
    return size


class CudaGraphsEngine(EagerEngine):
    """Records what a whole step does, and replays it: without the host, which takes longer to
    launch a step's kernels than a GPU to run them.

    What cannot be recorded is run as it is, step by step.
    """

    name = "cuda-graphs"
    WARM_UP = 2
    """Times that something is run before it is recorded: it makes what is made once."""
    ATTENTION = (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)
    """Not cuDNN's, which torch 2.11 and later prefer on Hopper in half precision: of every shape it
    builds a plan first, tens of milliseconds each, and small ones it does not do faster."""

    def __init__(
        self,
        precision: str = "float32",
        buckets: Buckets | None = None,
        record: Callable[[Replay], Replay] | None = None,
    ) -> None:
        """``record``: in place of CUDA's own way; it may run what it is given."""
        super().__init__(precision)
        self.buckets = buckets or Buckets()
        self._record = record
        self._pool: Any = None
        self._aside: Any = None
        """The stream of warm-ups: each new one would have a workspace of its own."""
        self._runners: set[str] = set()
        """What the steps so far were run by, which :attr:`name` says."""

    def _run_by(self, runner: str) -> None:
        self._runners.add(runner)
        self.name = " and ".join(sorted(self._runners))

    def fall_back(self, reason: str) -> None:
        """Know that steps are run as they are; the first time a warning says why."""
        if reason not in self.fallbacks:
            self.fallbacks.append(reason)
            logger.warning("%s: %s; eager runs the steps", CudaGraphsEngine.name, reason)
            self._run_by(EagerEngine.name)

    def record(self, part: Replay, device: torch.device) -> Replay:
        """What does the same as ``part``, which is run; what it made in passing is kept."""
        self._run_by(CudaGraphsEngine.name)
        if self._record is not None:
            return self._record(part)
        # What is replayed was chosen when it was recorded.
        with torch.cuda.device(device), sdpa_kernel(list(self.ATTENTION)):
            return self._captured(part)

    def _captured(self, part: Replay) -> Replay:
        if self._aside is None:
            self._aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside, ours = self._aside, torch.cuda.current_stream()
        aside.wait_stream(ours)
        with torch.cuda.stream(aside):
            for _ in range(self.WARM_UP):
                part()
        ours.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            part()
        # All share what they need in passing: none runs beside another.
        self._pool = graph.pool()
        replay: Replay = graph.replay
        return replay
