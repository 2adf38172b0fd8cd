"""The reference engine: PyTorch, on any device. No fairseq in here."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from specdec_plugins.engines.packing import pack
from specdec_plugins.engines.step import CachedStep, Run, Step


class EagerEngine:
    """Run steps as they are, in the precision of their weights."""

    name = "eager"
    in_place = True

    def __init__(self, precision: str = "float32") -> None:
        """``precision``: that of the models."""
        self.precision = precision
        self.fallbacks: list[str] = []
        self.dtype: torch.dtype = getattr(torch, precision)

    def prepare(self, step: Step) -> Run:
        pack(step)
        return step.in_room if isinstance(step, CachedStep) and self.in_place else step

    def running(self) -> AbstractContextManager[None]:
        return nullcontext()
