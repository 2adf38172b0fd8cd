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
    """Makes the weights of a model int8, each row of a matrix with a scale of its own, and what
    they are multiplied with int8 as well, each vector with as few scales as can be."""

    GROUP_SIZE = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
    """OpenVINO's name for how many numbers share a scale. It has to divide what a matrix takes, or
    float32 is what is multiplied; left alone it is 32, which costs a sixth of a step's time."""

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
        # Here, since what was compiled before needs no NNCF, which takes seconds and 200 MiB.
        with without_telemetry():
            import nncf

        logging.getLogger("nncf").setLevel(logging.ERROR)
        size = math.gcd(*_widths(model))
        if size >= 32:
            # With the model, not an option: what is loaded from a file later has it, too.
            model.set_rt_info(str(size), ["runtime_options", self.GROUP_SIZE])
        with redirect_stdout(io.StringIO()):  # to which it draws bars
            return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)


def _widths(model: Model) -> Iterator[int]:
    """How many numbers each matrix of weights of an OpenVINO model takes."""
    for operation in model.get_ordered_ops():
        if operation.get_type_name() == "MatMul":
            shape = operation.input_value(1).get_partial_shape()
            if shape.is_static and len(shape) == 2:
                transposed = operation.get_attributes()["transpose_b"]
                yield shape[1 if transposed else 0].get_length()
