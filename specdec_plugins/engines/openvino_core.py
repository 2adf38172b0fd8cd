"""OpenVINO's core, and what it can do on this machine. No fairseq in here."""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from specdec_plugins.engines.imports import installed_openvino

if TYPE_CHECKING:
    from openvino import Core

logger = logging.getLogger(__name__)


@cache
def core() -> Core:
    """Return the process's one and only, to its end.

    Every core brings a stack for handlers of signals. When it goes, it puts back the one that was
    there before it, even if that went with another core: of two, the first signal after them, such
    as that of Ctrl-C, would end the process.
    """
    made = installed_openvino().Core()
    made.get_versions("CPU")  # It brings the stack when it is first asked for something.
    return made


@cache
def takes(option: str, value: str) -> bool:
    """Return whether this version of OpenVINO knows an option."""
    # Another core, since what a core is told holds for all that it compiles.
    other = installed_openvino().Core()
    other.get_versions("CPU")  # Before that it takes whatever it is given.
    try:
        other.set_property("CPU", {option: value})
    except RuntimeError:
        return False
    return True


def computed_precision(precision: str) -> str:
    """Return the precision that OpenVINO computes in here if it is asked for one.

    Raises:
        EngineError: OpenVINO is not installed.
    """
    return "float32" if precision == "bfloat16" and not has_bfloat16() else precision


@cache
def has_bfloat16() -> bool:
    """Return whether OpenVINO computes in bfloat16 here if it is told to. On a processor without it
    takes float32 and does not say so, and what it says of the processor is not always so: a product
    of a number that bfloat16 has to round tells. A warning says that there is none.

    Raises:
        EngineError: OpenVINO is not installed.
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
