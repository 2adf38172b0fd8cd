"""Options, each declared once: as a field of the dataclass that it belongs to. No fairseq in here.

Flags, the task's configuration, checks and reports are made from these declarations.
"""

from __future__ import annotations

import math
import sys
from dataclasses import Field, dataclass, field, fields
from typing import Any, get_type_hints

from specdec_plugins.engines.choice import COMPILED, ENGINES, PRECISIONS

#: The largest number.
FINITE = sys.float_info.max


def option(
    default: object,
    help: str,
    minimum: float = -math.inf,
    maximum: float = math.inf,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """Declare a field of a dataclass that is an option: its help, bounds and choices."""
    return field(
        default=default,
        metadata={"help": help, "minimum": minimum, "maximum": maximum, "choices": choices},
    )


def option_fields(*owners: type) -> dict[str, Field[Any]]:
    """Return the fields of dataclasses that are options, by name."""
    return {
        field.name: field
        for owner in owners
        for field in fields(owner)
        if "minimum" in field.metadata
    }


def option_types(*owners: type) -> dict[str, Any]:
    """Return the types of options, by name."""
    # Python compiles every annotation of a dataclass anew for this.
    hints = {owner: get_type_hints(owner) for owner in owners}
    return {name: hints[owner][name] for owner in owners for name in option_fields(owner)}


def check_options(options: object, owner: type | None = None) -> None:
    """Refuse a value out of its bounds, by its flag.

    Args:
        owner: the dataclass that declares the options, which fairseq may give in another form.
    """
    for name, declared in option_fields(owner or type(options)).items():
        value = getattr(options, name)
        minimum = declared.metadata["minimum"]
        maximum = declared.metadata["maximum"]
        choices = declared.metadata["choices"]
        allowed = None
        if choices and value is not None and value not in choices:
            allowed = f"one of {', '.join(choices)}"
        elif isinstance(value, (int, float)) and not minimum <= value <= maximum:
            ends = []
            if minimum > -FINITE:
                ends.append(f"at least {minimum:.10g}")
            if maximum < FINITE:
                ends.append(f"at most {maximum:.10g}")
            allowed = " and ".join(ends) or "a number"
        if allowed:
            raise ValueError(f"--{name.replace('_', '-')} {value}: must be {allowed}")


PRECISION = (
    "of the arithmetic; int8: of weights and activations (onnxruntime); float16: GPUs only; "
    "float64: to check exactness (eager, cuda-graphs)"
)


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """The engine that runs the models, and the drafter's precision."""

    engine: str = option(
        "auto",
        "runs the models: onnxruntime (CPUs), cuda-graphs (NVIDIA GPUs: whole steps, recorded "
        "once), eager (plain PyTorch: any device, the reference), auto (onnxruntime on a CPU if "
        "it is installed, cuda-graphs on a GPU, otherwise eager)",
        choices=("auto", *ENGINES),
    )
    drafter_precision: str | None = option(
        None,
        "of the drafter (onnxruntime): changes the drafts but, up to rounding, not the output of "
        "strict acceptance, for which it is int8 by default; otherwise the verifier's",
        choices=COMPILED,
    )


@dataclass(frozen=True, kw_only=True)
class LoadedModels(EngineOptions):
    """The engine of models that fairseq has loaded, which have a precision already."""

    precision: str | None = option(None, f"{PRECISION}; by default the models'", choices=PRECISIONS)
