"""OpenVINO's core, and its abilities on this machine. No fairseq in here."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from specdec_plugins.files.errors import EngineError

if TYPE_CHECKING:
    from openvino import Core

logger = logging.getLogger(__name__)

TELEMETRY = "openvino_telemetry"


def has_openvino() -> bool:
    """Return whether OpenVINO is installed."""
    return find_spec("openvino") is not None


@contextmanager
def without_telemetry() -> Iterator[None]:
    """Hide the module by which OpenVINO and NNCF, imported in here, would report their use."""
    before = sys.modules.get(TELEMETRY)
    sys.modules[TELEMETRY] = None  # type: ignore[assignment]  # Python's own way to hide a module
    try:
        yield
    finally:
        del sys.modules[TELEMETRY]
        if before is not None:
            sys.modules[TELEMETRY] = before


def installed_openvino() -> Any:
    """Return the module.

    Raises:
        EngineError: it cannot be imported.
    """
    try:
        with without_telemetry():
            import openvino
    except ImportError as error:
        raise EngineError(
            f"--engine openvino, --precision int8: OpenVINO cannot be imported ({error}); pip "
            "install 'specdec-plugins[openvino,int8]', or use --engine eager"
        ) from error
    return openvino


@cache
def core() -> Core:
    """Return the core of this process, which lives to its end.

    Each core installs a stack of signal handlers, and on its way out restores the stack it found,
    even one that another core has freed: the next signal would then end the process.
    """
    made = installed_openvino().Core()
    made.get_versions("CPU")  # The stack is installed at the first use.
    return made


@cache
def takes(option: str, value: str) -> bool:
    """Return whether this version of OpenVINO knows an option."""
    other = installed_openvino().Core()  # A property would hold for all that a core compiles.
    other.get_versions("CPU")  # Before this, any option is taken.
    try:
        other.set_property("CPU", {option: value})
    except RuntimeError:
        return False
    return True


@cache
def has_bfloat16() -> bool:
    """Return whether OpenVINO computes in bfloat16 here; if not, warn.

    Where it cannot, it silently computes in float32, and its list of the processor's abilities is
    not reliable. So multiply a number that bfloat16 has to round.
    """
    openvino, size = installed_openvino(), 64
    from openvino import opset13 as operations

    x = operations.parameter([-1, size], np.float32)
    product = operations.matmul(x, np.eye(size, dtype=np.float32), False, False)
    model = openvino.Model([product], [x])
    finer = np.full((2, size), 1 + 2.0**-10, np.float32)
    try:
        run = core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "bf16"})
        rounded = not np.array_equal(run(finer)[0], finer)
    except RuntimeError:
        rounded = False
    if not rounded:
        logger.warning("OpenVINO has no bfloat16 on this processor, and takes float32 in its place")
    return rounded


def computed_precision(precision: str) -> str:
    """Return the precision in which OpenVINO computes here if this one is asked for."""
    return "float32" if precision == "bfloat16" and not has_bfloat16() else precision
