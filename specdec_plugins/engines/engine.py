"""The interface of engines. No fairseq in here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch

from specdec_plugins.engines.step import Run, Step

EAGER = "eager"
#: A function of tensors that never move, or its recording.
Replay = Callable[[], None]


@dataclass(frozen=True)
class Buckets:
    """The smallest sizes of recordings; the others are :func:`bucket`."""

    #: Positions of the smallest cache.
    width: int = 128
    #: Tokens of the shortest source.
    source: int = 32


def bucket(size: int, min_: int) -> int:
    """Return a size that suffices for ``min_``: ``size``, doubled as often as it takes."""
    while size < min_:
        size *= 2
    return size


class Recorder(Protocol):
    """Records whole steps, to be replayed."""

    #: The sizes for which it records.
    buckets: Buckets

    def record(self, part: Replay, device: torch.device) -> Replay:
        """Run ``part``, and return its recording."""

    def fall_back(self, reason: str) -> None:
        """Note that steps of a batch are not recorded."""


class Engine:
    """Runs pure steps fast, and says what it can do."""

    #: The engine that really runs the prepared steps.
    name: str
    #: The type of the models whose steps it runs.
    dtype: torch.dtype
    #: True if a cached step gets the whole cache, the indices of new tokens and always a mask, and
    #: inputs may be the same tensors filled anew; else it gets the cached positions with room
    #: behind them.
    whole_cache = False
    #: The rows of the largest batch on a CPU for which a drafter's drafts pay.
    max_drafted_rows = 1
    #: True if it runs all steps by weights of its own, so that the models' may go.
    stores_weights = False

    def __init__(self, precision: str) -> None:
        #: The precision of the arithmetic, whatever was asked for.
        self.precision = precision
        #: The reasons why eager runs some steps in its place.
        self.fallbacks: list[str] = []
        #: The precisions of the engines that ran steps so far.
        self._runners: dict[str, str] = {}

    def _run_by(self, runner: str, precision: str) -> None:
        """Note an engine that runs steps: this one, or, named last, eager in its place."""
        self._runners[runner] = precision
        names = sorted(self._runners, key=EAGER.__eq__)
        self.name = " and ".join(names)
        self.precision = " and ".join(dict.fromkeys(self._runners[name] for name in names))

    @property
    def recorder(self) -> Recorder | None:
        """Records whole steps; None: this engine cannot."""
        return None

    def prepare(self, step: Step) -> Run:
        """Return the function to call in place of a step, which cannot run by itself any more."""
        raise NotImplementedError

    def release(self) -> None:
        """Free the weights of the models whose steps it has prepared, if it stores its own."""

    def running(self) -> AbstractContextManager[None]:
        """Return the context in which steps are run."""
        return nullcontext()


@dataclass(frozen=True)
class Engines:
    """The engines of a pair's models, which differ if their precisions do."""

    verifier: Engine
    drafter: Engine

    @classmethod
    def both(cls, engine: Engine) -> Engines:
        """Return the same engine for both models."""
        return cls(engine, engine)

    @property
    def name(self) -> str:
        """The engine that runs the models, and the drafter's if it is another."""
        return _described(self.verifier.name, self.drafter.name)

    @property
    def precision(self) -> str:
        """The precision of the arithmetic, and the drafter's if it is another."""
        return _described(self.verifier.precision, self.drafter.precision)

    @property
    def fallbacks(self) -> list[str]:
        """The reasons why eager runs some steps in their place."""
        reasons = [*self.verifier.fallbacks, *self.drafter.fallbacks]
        return list(dict.fromkeys(reasons))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Prepare both engines to run steps."""
        # The verifier's last, as it takes longer: engines may want numbers of threads.
        with self.drafter.running(), self.verifier.running():
            yield


def _described(verifier: str, drafter: str) -> str:
    return verifier if drafter == verifier else f"{verifier}, {drafter} drafts"
