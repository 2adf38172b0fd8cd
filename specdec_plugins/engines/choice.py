"""The engines, and the choice among them. No fairseq in here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from specdec_plugins.engines.cuda_graphs import CudaGraphsEngine
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.engine import Engine, Engines
from specdec_plugins.engines.onnxruntime import OnnxRuntimeEngine

TORCH = ("float32", "float64", "bfloat16", "float16")
PRECISIONS = (*TORCH, "int8")
#: Precisions of ONNX Runtime, the wider first.
COMPILED = ("float32", "int8")


@dataclass(frozen=True)
class EngineKind:
    """An engine that ``--engine`` can name."""

    #: Makes it for a precision; with ``fall_back``, see :class:`OnnxRuntimeEngine`.
    make: Callable[..., Engine]
    precisions: tuple[str, ...]
    #: The type of its devices; None: any.
    device: str | None = None
    #: Modules that it needs and that may be missing.
    libraries: tuple[str, ...] = ()

    def runs(self, precision: str, device: str) -> bool:
        """Return whether it computes in a precision on a type of device."""
        # PyTorch's float16 on a CPU is many times slower than its float32.
        slow = precision == "float16" and device == "cpu"
        return self.device in (None, device) and precision in self.precisions and not slow


#: All engines, in the order in which ``auto`` tries them.
ENGINES: dict[str, EngineKind] = {
    "onnxruntime": EngineKind(OnnxRuntimeEngine, COMPILED, "cpu", ("onnxruntime", "onnx")),
    CudaGraphsEngine.name: EngineKind(CudaGraphsEngine, TORCH, "cuda"),
    EagerEngine.name: EngineKind(EagerEngine, TORCH),
}


def is_installed(engine: str) -> bool:
    """Return whether the libraries that an engine needs are installed."""
    return all(map(find_spec, ENGINES[engine].libraries))


def check_drafter(engine: str, precision: str, drafter_precision: str | None, device: str) -> None:
    """Refuse a precision of the drafter's own where the engine has only one."""
    name = engine_name(engine, precision, device)
    if drafter_precision not in (None, precision) and ENGINES[name].device != "cpu":
        raise ValueError(
            f"--drafter-precision {drafter_precision}: is for --engine onnxruntime (pip install "
            f"'specdec-plugins[int8]'), and {name} runs --precision {precision} here"
        )


def engine_name(engine: str, precision: str, device: str) -> str:
    """Return the engine that is asked for, or the one that ``auto`` stands for."""
    kind = torch.device(device).type
    names = list(ENGINES) if engine == "auto" else [engine]
    suitable = [name for name in names if ENGINES[name].runs(precision, kind)]
    if not suitable:
        choices = [f"--engine {name}" for name in ENGINES if ENGINES[name].runs(precision, kind)]
        raise ValueError(
            f"--engine {engine} --precision {precision}: not on {kind}; "
            f"give {' or '.join(choices) or 'another precision'}"
        )
    return next((name for name in suitable if is_installed(name)), suitable[0])


def precision_of_drafts(
    asked: str | None, strict: bool, engine: str, precision: str, device: str
) -> str | None:
    """Return the precision of a drafter's drafts: by default int8 where output does not depend on
    them and an engine has it, the verifier's elsewhere."""
    if asked is None and strict:
        kind = ENGINES[engine_name(engine, precision, device)]
        return "int8" if "int8" in kind.precisions else precision
    return asked


def choose_engine(engine: str, precision: str, device: str) -> Engine:
    """Make the engine that is asked for."""
    kind = ENGINES[engine_name(engine, precision, device)]
    if torch.device(device).type == "cuda":
        # See CudaGraphsEngine.ATTENTION; without graphs every length is another shape.
        torch.backends.cuda.enable_cudnn_sdp(False)
    if engine == "auto" and kind.device == "cpu":
        return kind.make(precision, fall_back=True)
    return kind.make(precision)


def choose_engines(
    engine: str, precision: str, drafter_precision: str | None, device: str
) -> Engines:
    """Make one engine for both models, or two where their precisions differ."""
    check_drafter(engine, precision, drafter_precision, device)
    chosen = choose_engine(engine, precision, device)
    if drafter_precision in (None, precision):
        return Engines.both(chosen)
    return Engines(chosen, choose_engine(engine, str(drafter_precision), device))
