"""What every engine can do. No fairseq in here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch

from specdec_plugins.engines.sizes import Sizes
from specdec_plugins.engines.step import Run, Step


class Engine(Protocol):
    """Runs pure steps fast."""

    dtype: torch.dtype
    """The type of the models that it is given."""

    @property
    def name(self) -> str:
        """What runs the steps that it has prepared."""
        ...

    @property
    def precision(self) -> str:
        """What they really compute in, whatever was asked for."""
        ...

    @property
    def fallbacks(self) -> Sequence[str]:
        """Why eager runs some steps, or all, in its place: each reason once."""
        ...

    @property
    def about(self) -> Mapping[str, object]:
        """What its times depend on beside name, precision and threads: versions, settings."""
        ...

    @property
    def sizes(self) -> Sizes:
        """The sizes of what steps are handed; padded ones are for the host."""
        ...

    def prepare(self, step: Step) -> Run:
        """What is called in place of the step, whose weights are not to change.

        Where sizes are exact, a cached step is handed room behind what is cached, and may write
        there; where they are padded, it is not, and inputs may be the same tensors again, filled
        anew.
        """
        ...

    def running(self) -> AbstractContextManager[None]:
        """Is entered while steps are run."""
        ...


def described(of_verifier: str, of_drafter: str) -> str:
    """The engine's name, or its precision, in words: the drafter's, too, where it is another."""
    return of_verifier if of_drafter == of_verifier else f"{of_verifier}, {of_drafter} drafts"


@dataclass(frozen=True)
class Engines:
    """What runs the models of a pair: two of them where precisions differ, else one."""

    verifier: Engine
    drafter: Engine

    @classmethod
    def both(cls, engine: Engine) -> Engines:
        """One for both models."""
        return cls(engine, engine)

    @property
    def name(self) -> str:
        """What runs the models."""
        return described(self.verifier.name, self.drafter.name)

    @property
    def precision(self) -> str:
        """What they are computed in, whatever was asked for."""
        return described(self.verifier.precision, self.drafter.precision)

    @property
    def fallbacks(self) -> list[str]:
        """Why eager runs steps in their place: each reason once."""
        return list(dict.fromkeys([*self.verifier.fallbacks, *self.drafter.fallbacks]))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Is entered while steps of both models are run."""
        with ExitStack() as stack:
            if self.drafter is not self.verifier:
                stack.enter_context(self.drafter.running())
            # The verifier's last, as it takes longer: engines may want numbers of threads.
            stack.enter_context(self.verifier.running())
            yield
