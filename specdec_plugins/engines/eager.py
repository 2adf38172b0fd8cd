"""The reference engine: PyTorch, on any device. No fairseq in here."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from specdec_plugins.engines.engine import Recorder
from specdec_plugins.engines.packing import pack
from specdec_plugins.engines.step import Run, Step


class EagerEngine:
    """Run steps as they are, in the precision of their weights."""

    name = "eager"
    whole_cache = False
    max_drafted_rows = 2
    stores_weights = False

    def __init__(self, precision: str = "float32") -> None:
        """``precision``: that of the models."""
        self.precision = precision
        self.fallbacks: list[str] = []
        self.dtype: torch.dtype = getattr(torch, precision)

    @property
    def recorder(self) -> Recorder | None:
        return None

    def release(self) -> None:
        """Keep the weights, by which steps run."""

    def prepare(self, step: Step) -> Run:
        pack(step)
        return step

    def running(self) -> AbstractContextManager[None]:
        return nullcontext()
