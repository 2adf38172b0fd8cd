"""The interface of engines. No fairseq in here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch

from specdec_plugins.engines.step import Run, Step


class Engine(Protocol):
    """Runs pure steps fast."""

    #: The type of the models whose steps it runs.
    dtype: torch.dtype

    @property
    def name(self) -> str:
        """The engine that really runs the prepared steps."""

    @property
    def precision(self) -> str:
        """The precision of the arithmetic, whatever was asked for."""

    @property
    def fallbacks(self) -> Sequence[str]:
        """The reasons why eager runs some steps in its place."""

    @property
    def whole_cache(self) -> bool:
        """True if a cached step gets the whole cache, the indices of new tokens and always a mask,
        and inputs may be the same tensors filled anew; else it gets the cached positions with room
        behind them."""

    def prepare(self, step: Step) -> Run:
        """Return the function to call in place of a step, which cannot run by itself any more."""

    def running(self) -> AbstractContextManager[None]:
        """Return the context in which steps are run."""


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
        return list(dict.fromkeys([*self.verifier.fallbacks, *self.drafter.fallbacks]))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Prepare both engines to run steps."""
        # The verifier's last, as it takes longer: engines may want numbers of threads.
        with self.drafter.running(), self.verifier.running():
            yield


def _described(verifier: str, drafter: str) -> str:
    return verifier if drafter == verifier else f"{verifier}, {drafter} drafts"
