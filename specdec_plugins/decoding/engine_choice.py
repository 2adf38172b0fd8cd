"""Which engine runs the models, in which precision: the options. No fairseq in here."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specdec_plugins.decoding.options import option
from specdec_plugins.engines.cuda_graphs import CudaGraphsEngine
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.engine import Engine, Engines
from specdec_plugins.engines.imports import has_openvino
from specdec_plugins.files.errors import EngineError

COMPILED = ("float32", "bfloat16", "int8")
"""Precisions that OpenVINO has, the widest first."""
PRECISIONS = ("float32", "float64", "bfloat16", "float16", "int8")

PRECISION = (
    "of the arithmetic; int8: of weights and of what they are multiplied with (openvino only), "
    "float16 is for GPUs, float64 to check exactness (eager only)"
)
ENGINES = ("auto", "eager", "openvino", CudaGraphsEngine.name)


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """The engine that runs the models, and the precision of the drafter's."""

    engine: str = option(
        "auto",
        "what runs the models: openvino (CPUs), cuda-graphs (NVIDIA GPUs: whole steps, recorded "
        "once), eager (PyTorch as it is: any device, the reference), auto (openvino on a CPU where "
        "it is installed and has the precision, cuda-graphs on a GPU, else eager)",
        choices=ENGINES,
    )
    drafter_precision: str | None = option(
        None,
        "of the drafter (openvino only; by default the verifier's): changes what is drafted, but "
        "up to rounding not what strict acceptance puts out",
        choices=COMPILED,
    )


@dataclass(frozen=True, kw_only=True)
class LoadedModels(EngineOptions):
    """The engine of models that fairseq has loaded, whose precision is that of the weights."""

    precision: str | None = option(None, f"{PRECISION}; by default the models'", choices=PRECISIONS)


def check_engine(engine: str, precision: str, device: str) -> None:
    """
    Raises:
        ValueError: these do not go together, naming the flag.
    """
    on_cpu = torch.device(device).type == "cpu"
    if precision == "float16" and on_cpu:
        raise ValueError("--precision float16: needs a GPU; on the CPU use bfloat16")
    if engine == "openvino":
        if not on_cpu:
            raise ValueError("--engine openvino: is for CPUs; give --cpu, or use --engine eager")
        if precision not in COMPILED:
            raise ValueError(
                f"--engine openvino: has no --precision {precision}; use --engine eager"
            )
    if engine == CudaGraphsEngine.name and torch.device(device).type != "cuda":
        raise ValueError(f"--engine {engine}: is for NVIDIA GPUs; use --engine auto")
    if precision == "int8" and (engine == "eager" or not on_cpu):
        raise ValueError("--precision int8: is for CPUs and --engine openvino")


def check_drafter(engine: str, precision: str, drafter_precision: str | None, device: str) -> None:
    """
    Raises:
        ValueError: the drafter's precision does not go with the others, naming the flag.
    """
    if drafter_precision in (None, precision):
        return
    if engine_name(engine, precision, device) != "openvino":
        missing = engine == "auto" and precision in COMPILED and not has_openvino()
        runs = f"{engine_name(engine, precision, device)} runs --precision {precision} here"
        why = "OpenVINO is not installed" if missing else runs
        raise ValueError(
            f"--drafter-precision {drafter_precision}: is for --engine openvino, and {why}; "
            + ("pip install 'specdec-plugins[openvino]', or " if missing else "")
            + "leave it out"
        )


def engines_for_cpus() -> tuple[str, ...]:
    """Return the engines that are installed."""
    return ("eager", "openvino") if has_openvino() else ("eager",)


def engine_name(engine: str, precision: str, device: str) -> str:
    """Return the engine that ``auto`` is, or the one asked for."""
    if engine != "auto":
        return engine
    kind = torch.device(device).type
    if kind == "cpu" and precision in COMPILED and has_openvino():
        return "openvino"
    return CudaGraphsEngine.name if kind == "cuda" else "eager"


def choose_engine(engine: str, precision: str, device: str) -> Engine:
    """Return the engine that is asked for.

    Raises:
        ValueError: these do not go together.
        EngineError: it is not installed.
    """
    check_engine(engine, precision, device)
    name = engine_name(engine, precision, device)
    if torch.device(device).type == "cuda":
        # See CudaGraphsEngine.ATTENTION; without graphs every length is another shape.
        torch.backends.cuda.enable_cudnn_sdp(False)
    if name == "openvino":
        # Only where it is used: it is an extra.
        from specdec_plugins.engines.openvino import OpenVinoEngine

        return OpenVinoEngine(precision, fall_back=engine == "auto")
    if precision == "int8":
        raise EngineError(
            "--precision int8: needs OpenVINO, which is not installed; pip install "
            "'specdec-plugins[openvino,int8]'"
        )
    return CudaGraphsEngine(precision) if name == CudaGraphsEngine.name else EagerEngine(precision)


def choose_engines(
    engine: str, precision: str, drafter_precision: str | None, device: str
) -> Engines:
    """Return the same engine for both models, unless the drafter computes in another precision.

    Raises:
        ValueError: these do not go together.
        EngineError: one is not installed.
    """
    chosen = choose_engine(engine, precision, device)
    check_drafter(engine, precision, drafter_precision, device)
    if drafter_precision in (None, precision):
        return Engines.both(chosen)
    other = choose_engine(engine, str(drafter_precision), device)
    return Engines(chosen, chosen if other.precision == chosen.precision else other)
