"""Steps replayed as CUDA graphs, which launch all kernels at once. No fairseq in here."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.engine import EAGER, Buckets, Replay

logger = logging.getLogger(__name__)


class CudaGraphsEngine(EagerEngine):
    """Record whole steps and replay them; what cannot be recorded runs as it is.

    The host takes longer to launch a step's kernels than a GPU to run them.
    """

    name = "cuda-graphs"
    #: Runs before a recording, in which CUDA allocates what it allocates once.
    WARM_UP = 2
    #: Not cuDNN's, which torch 2.11 and later prefer on Hopper in half precision: it plans every
    #: shape for tens of milliseconds, and is no faster on small ones.
    ATTENTION = (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)

    def __init__(
        self,
        precision: str = "float32",
        buckets: Buckets = Buckets(),
        record: Callable[[Replay], Replay] | None = None,
    ) -> None:
        """``record``: records in place of CUDA; it may run its argument."""
        super().__init__(precision)
        self.buckets = buckets
        self._record = record
        self._pool: Any = None
        #: The stream of warm-ups; a new stream would allocate a workspace.
        self._aside: Any = None

    @property
    def recorder(self) -> CudaGraphsEngine:
        return self

    def fall_back(self, reason: str) -> None:
        """Note that steps are not recorded; the first time, warn."""
        if reason not in self.fallbacks:
            self.fallbacks.append(reason)
            logger.warning("%s: %s; the eager engine runs the steps", CudaGraphsEngine.name, reason)
            self._run_by(EAGER, self.precision)

    def record(self, part: Replay, device: torch.device) -> Replay:
        """Run ``part``, and return its recording; what it allocates stays allocated."""
        self._run_by(CudaGraphsEngine.name, self.precision)
        if self._record is not None:
            return self._record(part)
        # A replay runs the kernels that were chosen for the recording.
        with torch.cuda.device(device), sdpa_kernel(list(self.ATTENTION)):
            return self._captured(part)

    def _captured(self, part: Replay) -> Replay:
        if self._aside is None:
            self._aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside = self._aside
        ours = torch.cuda.current_stream()
        aside.wait_stream(ours)
        with torch.cuda.stream(aside):
            for _ in range(self.WARM_UP):
                part()
        ours.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            part()
        # Recordings never overlap, so they share memory.
        self._pool = graph.pool()
        replay: Replay = graph.replay
        return replay
