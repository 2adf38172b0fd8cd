"""Models of OpenVINO in int8, by NNCF."""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Iterator
from contextlib import redirect_stdout
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from specdec_plugins.engines.openvino_core import without_telemetry
from specdec_plugins.files.errors import EngineError

if TYPE_CHECKING:
    from openvino import Model


class WeightCompression:
    """Make weights int8, with a scale for each row, and so, as they come, their factors.

    Each vector of factors has as few scales as possible.
    """

    GROUP_SIZE = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
    """OpenVINO's option of how many factors share a scale.

    Where it does not divide a matrix's width, products are in float32; its default of 32 costs a
    sixth of a step's time."""

    def __init__(self) -> None:
        """
        Raises:
            EngineError: NNCF is not installed.
        """
        try:
            self.about = f"nncf {version('nncf')}, groups as wide as can be"
        except PackageNotFoundError as error:
            raise EngineError(
                "int8: needs NNCF, which is not installed; pip install "
                "'specdec-plugins[openvino,int8]'"
            ) from error

    def __call__(self, model: Model) -> Model:
        # NNCF takes seconds and 200 MiB, and stored models do without.
        with without_telemetry():
            import nncf

        logging.getLogger("nncf").setLevel(logging.ERROR)
        size = math.gcd(*_widths(model))
        if size >= 32:
            # In the model, so that its file has it, too.
            model.set_rt_info(str(size), ["runtime_options", self.GROUP_SIZE])
        with redirect_stdout(io.StringIO()):  # It draws progress bars.
            return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)


def _widths(model: Model) -> Iterator[int]:
    """Yield the input width of each matrix of weights."""
    for operation in model.get_ordered_ops():
        if operation.get_type_name() == "MatMul":
            shape = operation.input_value(1).get_partial_shape()
            if shape.is_static and len(shape) == 2:
                transposed = operation.get_attributes()["transpose_b"]
                yield shape[1 if transposed else 0].get_length()
