"""Steps compiled by OpenVINO, for CPUs. No fairseq in here."""

from __future__ import annotations

import logging
import math
import os
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from specdec_plugins.engines.compiled import CompiledEngine, last_line
from specdec_plugins.engines.openvino_requests import (
    CachedRequests,
    Request,
    Requests,
    SourceRequests,
)
from specdec_plugins.engines.step import CachedStep, Run, SourceStep, Step
from specdec_plugins.engines.traced_step import TracedStep
from specdec_plugins.files.errors import EngineError
from specdec_plugins.machine import processor_name

if TYPE_CHECKING:
    from openvino import Core, Model

logger = logging.getLogger(__name__)

HINTS = {"float32": "f32", "bfloat16": "bf16", "int8": "f32"}
"""OpenVINO's names of the arithmetic, by precision."""
UNFUSED = {"SNIPPETS_MODE": "DISABLE"}
"""Options of models for any sizes: no generated kernels for several operations together, whose
attention in batches is slower than plain products. Undocumented, so it may be dropped."""
MISFUSED = ("bfloat16",)
"""Precisions in which sources are compiled for any length only.

On a processor with bfloat16 but without AMX, OpenVINO 2026.4 computed attention wrongly where all
sizes were known. See also https://github.com/openvinotoolkit/openvino/issues/38256."""
GROUP_SIZE = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
"""OpenVINO's option of how many inputs of a product share an int8 scale.

Where it does not divide a matrix's width, products are in float32; its default of 32 costs a
sixth of a step's time."""


class OpenVinoEngine(CompiledEngine):
    """Compile steps for this machine's processor."""

    def __init__(self, precision: str = "float32", fall_back: bool = False) -> None:
        """
        Args:
            precision: one of ``HINTS``; without bfloat16 on this processor it becomes float32.

        Raises:
            EngineError: OpenVINO is not installed.
        """
        # At its import OpenVINO reports its use, if it finds the module that does it.
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
        try:
            import openvino
        except ImportError as error:
            raise EngineError(
                f"--engine openvino: cannot be imported ({error}); pip install "
                "'specdec-plugins[openvino]', or use --engine eager"
            ) from error
        super().__init__("openvino", computed_precision(precision), fall_back)
        self._openvino, self._core = openvino, core()
        self._options: dict[str, object] = {
            # Otherwise OpenVINO may choose bfloat16 by itself.
            "INFERENCE_PRECISION_HINT": HINTS[self._precision],
            "INFERENCE_NUM_THREADS": self._threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
        }
        unfused = {option: value for option, value in UNFUSED.items() if takes(option, value)}
        self._any_sizes = {**self._options, **unfused}

    def compiled(self, step: Step) -> Run:
        traced = TracedStep(step)
        model = self._converted(traced.graph())
        compression = compress(model) if self._precision == "int8" else {}
        # With weights that are mapped from one file a step takes up to a tenth less time.
        with tempfile.TemporaryDirectory(prefix="specdec-") as folder:
            path = os.path.join(folder, "step.xml")
            self._openvino.save_model(model, path, compress_to_fp16=False)
            model = self._core.read_model(path)
        # Compile at once, so that a failure shows while models are loaded.
        first = [self._request(traced, model, compression)]

        def request(tokens: int) -> Request:
            return first.pop() if first else self._request(traced, model, compression)

        def request_for_one_row(tokens: int) -> Request:
            # Sizes that are not known beforehand take a tenth of a step's time.
            try:
                return self._request(traced, model, compression, tokens)
            except RuntimeError as error:
                logger.warning("openvino cannot compile a step of one row: %s", last_line(error))
                return request(tokens)

        single = Requests(request_for_one_row, step.transient)
        if isinstance(step, CachedStep):
            return CachedRequests(Requests(request, step.transient), single)
        several = Requests(request, step.transient, 1)
        if isinstance(step, SourceStep) and self._precision not in MISFUSED:
            return SourceRequests(several, single, step.rows_at, step.tokens_at)
        return several

    def _request(
        self,
        traced: TracedStep,
        model: Model,
        options: dict[str, object],
        tokens: int | None = None,
    ) -> Request:
        """Compile a model.

        Args:
            options: of the compiler, beside the engine's.
            tokens: new tokens, or source tokens, of a single row; None: inputs of any sizes.

        Raises:
            RuntimeError: OpenVINO cannot compile it, or computes something else.
        """
        if tokens is None:
            options = self._any_sizes | options
        else:
            options, model = self._options | options, model.clone()
            shapes = map(self._openvino.PartialShape, traced.shapes(1, tokens))
            model.reshape(dict(zip(model.inputs, shapes)))
        compiled = self._core.compile_model(model, "CPU", options)
        request = Request(self._openvino.Tensor, compiled, traced.parts)
        traced.check(request.checked, *((2, 5) if tokens is None else (1, tokens)))
        return request

    def _converted(self, graph: Any) -> Model:
        """Convert a traced step into a model of OpenVINO's."""
        # It would log the whole graph where fairseq has logging print everything.
        logging.getLogger("openvino").setLevel(logging.WARNING)
        from openvino.frontend import FrontEndManager
        from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

        frontend = FrontEndManager().load_by_framework("pytorch")
        # Not openvino.convert_model, which reports its use. The decoder has to outlive the
        # conversion.
        decoder = TorchScriptPythonDecoder(graph)
        return frontend.convert(frontend.load(decoder))


def compress(model: Model) -> dict[str, object]:
    """Make a model's weights int8, with a scale for each row, and return options to compile it.

    OpenVINO then makes inputs int8 as well, with as few scales as possible.
    """
    from openvino import opset13 as operations

    widths = []
    for product, weight in _products(model):
        scale = np.abs(weight).max(1, keepdims=True) / 127 + np.float32(1e-12)
        stored = operations.constant(np.round(weight / scale).astype(np.int8))
        restored = operations.multiply(operations.convert(stored, "f32"), scale)
        transposed = product.get_attributes()["transpose_a"]
        compressed = operations.matmul(product.input_value(0), restored, transposed, True)
        for target in product.output(0).get_target_inputs():
            target.replace_source_output(compressed.output(0))
        widths.append(weight.shape[1])
    size = math.gcd(*widths)
    return {GROUP_SIZE: size} if size >= 32 else {}


def _products(model: Model) -> Iterator[tuple[Any, Any]]:
    """Yield each product with a matrix of weights, and the weights ``(outputs, inputs)``."""
    for operation in model.get_ordered_ops():
        if operation.get_type_name() == "MatMul":
            weight = operation.input_value(1).get_node()
            if weight.get_type_name() == "Constant" and len(weight.shape) == 2:
                transposed = operation.get_attributes()["transpose_b"]
                yield operation, weight.data if transposed else weight.data.T


@cache
def core() -> Core:
    """Return the core of this process, which lives to its end.

    Each core installs a stack of signal handlers, and on its way out restores the stack it found,
    even one that another core has freed: the next signal would then end the process.
    """
    import openvino

    made = openvino.Core()
    made.get_versions("CPU")  # The stack is installed at the first use.
    return made


@cache
def takes(option: str, value: str) -> bool:
    """Return whether this version of OpenVINO knows an option."""
    import openvino

    other = openvino.Core()  # A property would hold for all that a core compiles.
    other.get_versions("CPU")  # Before this, any option is taken.
    try:
        other.set_property("CPU", {option: value})
    except RuntimeError:
        return False
    return True


def has_bfloat16() -> bool:
    """Return whether OpenVINO computes in bfloat16 here; where not, it silently takes float32."""
    return any(name in processor_name() for name in ("bf16", "amx"))


def computed_precision(precision: str) -> str:
    """Return the precision in which OpenVINO computes here if this one is asked for."""
    if precision != "bfloat16" or has_bfloat16():
        return precision
    logger.warning("OpenVINO has no bfloat16 on this processor, and takes float32 in its place")
    return "float32"
