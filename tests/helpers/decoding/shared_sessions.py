"""Engines for properties: PyTorch in float64; ONNX Runtime, which compiles a model once a run."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.engine import Engine
from specdec_plugins.engines.onnxruntime import OnnxRuntimeEngine
from specdec_plugins.engines.step import Run, Step

NAMES = ("eager", "onnxruntime")
TIES = {"eager": 0.0, "onnxruntime": 1e-3}
"""How far the logits of two words may be apart of which an engine may take either."""


class SharedSessions(OnnxRuntimeEngine):
    """ONNX Runtime, which compiles the steps of a model at their first use only.

    Two generators with the same models must not take turns within a batch.
    """

    stores_weights = False  # which would free the models' own

    def __init__(self, precision: str) -> None:
        super().__init__(precision)
        self._runs: dict[object, tuple[Run, Step]] = {}

    def prepare(self, step: Step) -> Run:
        key = type(step), id(_model_of(step)), tuple(getattr(step, "_feature_layers", ()))
        if key not in self._runs:
            # The step keeps its model, and so the model's id.
            self._runs[key] = super().prepare(step), step
        return self._runs[key][0]


def _model_of(step: Any) -> torch.nn.Module:
    """A part of the step's model that no other step of its type has."""
    for name in ("decoder", "encoder"):
        if hasattr(step, name):
            return getattr(step, name)
    return step._layers[0].layer


@cache
def engine_of(name: str, precision: str = "float32") -> Engine:
    """One of :data:`NAMES`; PyTorch has float64 alone."""
    return EagerEngine("float64") if name == "eager" else SharedSessions(precision)
