"""Steps run by ONNX Runtime, for CPUs: float32, or int8 by its own kernels. No fairseq in here."""

from __future__ import annotations

import io
import platform
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from specdec_plugins.engines.compiled import CompiledEngine, CompiledInput
from specdec_plugins.engines.step import Results, Run, Step
from specdec_plugins.engines.traced_step import TracedStep
from specdec_plugins.files.errors import EngineError
from specdec_plugins.machine import processor_name
from specdec_plugins.models.layers import Projection


class OnnxRuntimeEngine(CompiledEngine):
    """Run exported steps, each in one session for inputs of all sizes."""

    def __init__(self, precision: str = "float32", fall_back: bool = False) -> None:
        """
        Args:
            precision: float32 or int8.

        Raises:
            EngineError: ONNX Runtime is not installed.
        """
        super().__init__("onnxruntime", precision, fall_back)
        try:
            import onnx  # noqa: F401  # torch exports by it
            import onnxruntime
        except ImportError as error:
            raise EngineError(
                f"--engine onnxruntime: cannot be imported ({error}); pip install "
                "'specdec-plugins[int8]', or use --engine eager"
            ) from error
        self._runtime = onnxruntime
        self._bits = weight_bits(processor_name(), platform.machine())

    def compiled(self, step: Step) -> Run:
        traced = TracedStep(step)
        in_int8 = self._precision == "int8"
        with int8_products(step.projections, self._bits) if in_int8 else nullcontext():
            content = _exported(traced, in_int8)
        options = self._runtime.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # Threads that wait busily would take the cores from the other engine of a pair.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        session = self._runtime.InferenceSession(content, options, ["CPUExecutionProvider"])
        run = _Session(session, traced.parts)
        traced.check(run)
        return run


class _Session:
    """A session, called like the step."""

    def __init__(self, session: Any, parts: Sequence[int]) -> None:
        self._run = session.run
        self._names = {item.name for item in session.get_inputs()}
        self._feed: dict[str, NDArray[np.generic]] = {}
        self._inputs = [
            CompiledInput(count, partial(self._bind, end - count))
            for count, end in zip(parts, accumulate(parts))
        ]

    def _bind(self, first: int, index: int, part: Tensor) -> None:
        name = f"i{first + index}"
        if name in self._names:  # The step may not need all of them.
            self._feed[name] = part.numpy()

    def __call__(self, *inputs: Tensor | None) -> Results:
        for target, x in zip(self._inputs, (x for x in inputs if x is not None), strict=True):
            target.set(x)
        return tuple(map(torch.from_numpy, self._run(None, self._feed)))


def _exported(traced: TracedStep, in_int8: bool) -> bytes:
    names = [f"i{index}" for index in range(sum(traced.parts))]
    axes = {
        name: {axis: f"{name}_{axis}" for axis, size in enumerate(shape) if size == -1}
        for name, shape in zip(names, traced.any_shapes())
    }
    file = io.BytesIO()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's farewell to this exporter; numbers of layers
        torch.onnx.export(
            traced.module,
            tuple(traced.example),
            file,  # type: ignore[arg-type]  # this exporter takes it
            input_names=names,
            dynamic_axes={name: sizes for name, sizes in axes.items() if sizes},
            opset_version=17,
            custom_opsets={"com.microsoft": 1} if in_int8 else {},
            dynamo=False,
        )
    return file.getvalue()


def weight_bits(processor: str, machine: str) -> int:
    """Return the bits of int8 weights whose products do not saturate.

    x86 processors without VNNI add pairs of products in 16 bits:
    https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html
    """
    return 8 if "vnni" in processor or machine not in ("x86_64", "AMD64") else 7


@contextmanager
def int8_products(projections: Sequence[Projection], bits: int) -> Iterator[None]:
    """Make exported projections int8 products in here."""
    before = [vars(item).copy() for item in projections]
    try:
        for item in projections:
            item.run_by(_Int8Map(item, bits))
        yield
    finally:
        for item, state in zip(projections, before):
            vars(item).update(state)


class _Int8Map:
    """A projection whose weights have a scale for each output, and inputs one for all."""

    def __init__(self, projection: Projection, bits: int) -> None:
        assert projection.weight is not None
        weight = projection.weight.detach()
        scale = weight.abs().amax(1).clamp(min=1e-12) / (2 ** (bits - 1) - 1)
        self._scale, self._zero = scale, torch.zeros(len(scale), dtype=torch.int8)
        self._weight = (weight / scale[:, None]).round().to(torch.int8).t().contiguous()
        bias = projection.bias
        self._bias = torch.zeros_like(scale) if bias is None else bias.detach()
        self._relu = projection.relu

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = _Int8Product.apply(  # type: ignore[no-untyped-call]
            x, self._weight, self._scale, self._zero, self._bias
        )
        return F.relu(y) if self._relu else y


class _Int8Product(torch.autograd.Function):
    """ONNX Runtime's product, which makes its input int8 first."""

    @staticmethod
    def forward(
        context: object, x: Tensor, weight: Tensor, scale: Tensor, zero: Tensor, bias: Tensor
    ) -> Tensor:
        return F.linear(x, (weight * scale).t(), bias)

    @staticmethod
    def symbolic(graph: Any, x: Any, weight: Any, scale: Any, zero: Any, bias: Any) -> Any:
        result = graph.op("com.microsoft::DynamicQuantizeMatMul", x, weight, scale, zero, bias)
        kind, outputs = x.type(), weight.type().sizes()[1:]
        return result.setType(
            kind.with_sizes([*kind.sizes()[:-1], *outputs]) if kind.sizes() else kind
        )
