"""Engines whose steps are recorded without a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from specdec_plugins.engines.cuda_graphs import CudaGraphsEngine
from specdec_plugins.engines.engine import Buckets, Replay

SMALL = Buckets(width=16, source=8)
"""Sizes that tiny sentences grow out of."""


def by_call(part: Replay) -> Replay:
    """Nothing is recorded: it is called again."""
    return part


def by_graph(part: Replay) -> Replay:
    """Record a graph of operations; its replay runs no Python of ours, so that
    whatever was taken from the host while it was recorded shows."""

    def run(nothing: object) -> None:
        part()

    # One for the whole graph: else each result has one of its own, which takes as long again.
    with tracing(TracingContext(FakeTensorMode())):
        graph: Callable[[object], None] = make_fx(run)(torch.zeros(1))
    return lambda: graph(torch.zeros(1))


def recorded(
    record: Callable[[Replay], Replay] = by_call,
    precision: str = "float64",
    buckets: Buckets = SMALL,
) -> CudaGraphsEngine:
    """The engine ``cuda-graphs`` without CUDA."""
    return CudaGraphsEngine(precision, buckets, record)
