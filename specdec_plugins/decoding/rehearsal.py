"""A generator's work done for nothing: to look ahead, and to see how long its parts take."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from specdec_plugins.decoding.controllers.base import Bounds, Constant, Draft
from specdec_plugins.decoding.controllers.policies import Tree
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.statistics import DecodingStatistics


@contextmanager
def rehearsal(
    generator: Any, slots: int | None = None, limits: GenerationLimits | None = None
) -> Iterator[None]:
    """For a while the generator drafts as many slots at every step, verifies them, and counts
    nothing.

    Args:
        slots: how many, or how many nodes of a tree where its controller drafts trees; None is
            whole blocks.
        limits: to be heeded instead of the generator's own.
    """
    slots = generator.block_size if slots is None else slots
    kept = generator.controller, generator.statistics, generator.recorder, generator.limits
    generator.limits = limits or generator.limits
    bounds, depth = Bounds(0, slots), generator.controller.depth
    generator.controller = Tree(bounds, depth, math.inf) if depth else Constant(bounds)
    generator.statistics, generator.recorder = DecodingStatistics(), None
    try:
        with torch.inference_mode():
            yield
    finally:
        generator.controller, generator.statistics, generator.recorder, generator.limits = kept


class _Rows:
    """A recorder of nothing but the size of the batch, step by step."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def begin(self, rows: int) -> None:
        """Nothing."""

    def record(self, rows: list[int], *step: Any) -> None:
        """One step more."""
        self.steps.append(len(rows))

    def attach(self, hypotheses: Any) -> None:
        """Nothing."""


def decoded(generator: Any, sample: dict[str, Any], slots: int) -> tuple[float, list[int]]:
    """Decode a batch with so many slots at every step, or nodes of a tree.

    Returns:
        the seconds, without those of the encoders, and the rows of every step.
    """
    with rehearsal(generator, slots):
        generator.recorder = recorder = _Rows()
        generator.generate([], sample)
        statistics = generator.statistics
        seconds = statistics.total_seconds - statistics.stopwatch.seconds()["encode"]
    return seconds, recorder.steps


class StepParts:
    """The two parts of a step, again and again from the same state. Within a :func:`rehearsal`."""

    ACCEPTED = 0.8
    """Part of the slots, given that all before them are, that the last step is taken to have
    accepted: some rows then have more to cache than others, which is what a draft waits for."""

    def __init__(self, generator: Any, source: Tensor, prefix: int) -> None:
        """Rows that have committed ``prefix`` tokens, or as many as the limits allow.

        Args:
            source: ``(rows, length)`` source tokens without padding, on the device.
        """
        self._generator = generator
        self._rows = len(source)
        lengths = source.new_full((self._rows,), source.size(1))
        self._batch = generator._start({"src_tokens": source, "src_lengths": lengths})
        self._prefix = min(prefix, *self._batch.host_max_lengths)
        self._lengths = torch.full_like(lengths, self._prefix)
        most = min(self._prefix, generator.block_size + 1)
        self._host_new = [
            min(most, 1 + int(math.log(1 - (row + 0.5) / self._rows, self.ACCEPTED)))
            for row in range(self._rows)
        ]
        self._new = torch.tensor(self._host_new, device=source.device)
        self._drafts: dict[int, Draft] = {}

    def _reset(self, slots: int) -> None:
        batch = self._batch
        batch.lengths, batch.host_lengths = self._lengths, [self._prefix] * self._rows
        batch.uncached, batch.host_uncached = self._new, self._host_new
        batch.host_draft_lengths = [slots] * self._rows

    def draft(self, slots: int) -> None:
        """Draft so many slots, or nodes."""
        self._reset(slots)
        self._drafts[slots] = self._generator._draft(self._batch)

    def verify(self, slots: int) -> None:
        """Score what was drafted last with so many slots, and commit what is accepted."""
        self._reset(slots)
        generator, batch, draft = self._generator, self._batch, self._drafts[slots]
        inputs = generator._cut(batch, draft)
        scored = generator._score(batch, inputs, draft.tree)
        generator._commit(batch, inputs, draft, *scored)
