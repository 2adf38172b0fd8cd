"""The reference engine: PyTorch, on any device. No fairseq in here."""

from __future__ import annotations

import torch

from specdec_plugins.engines.engine import EAGER, Engine
from specdec_plugins.engines.packing import packed
from specdec_plugins.engines.step import Run, Step


class EagerEngine(Engine):
    """Run steps as they are, in the precision of their weights."""

    name = EAGER
    max_drafted_rows = 2

    def __init__(self, precision: str = "float32") -> None:
        """``precision``: that of the models."""
        super().__init__(precision)
        self.dtype = getattr(torch, precision)

    def prepare(self, step: Step) -> Run:
        for projection in step.projections:
            run = packed(projection)
            if run is not None:
                projection.run_by(run)
        return step
