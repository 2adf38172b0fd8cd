"""Options of the engine that runs the models. No fairseq in here."""

from __future__ import annotations

from dataclasses import dataclass

from specdec_plugins.decoding.options import option
from specdec_plugins.engines.choice import COMPILED, ENGINES, PRECISIONS

PRECISION = (
    "of the arithmetic; int8: of weights and of what they are multiplied with (onnxruntime), "
    "float16 is for GPUs, float64 to check exactness (eager only)"
)


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """The engine that runs the models, and the drafter's precision."""

    engine: str = option(
        "auto",
        "what runs the models: onnxruntime (CPUs), cuda-graphs (NVIDIA GPUs: whole steps, recorded "
        "once), eager (PyTorch as it is: any device, the reference), auto (onnxruntime on a CPU if "
        "it is installed, cuda-graphs on a GPU, else eager)",
        choices=("auto", *ENGINES),
    )
    drafter_precision: str | None = option(
        None,
        "of the drafter (onnxruntime; by default the verifier's): changes what is "
        "drafted, but up to rounding not what strict acceptance puts out",
        choices=COMPILED,
    )


@dataclass(frozen=True, kw_only=True)
class LoadedModels(EngineOptions):
    """The engine of models that fairseq has loaded, which have a precision already."""

    precision: str | None = option(None, f"{PRECISION}; by default the models'", choices=PRECISIONS)
