"""Projections exported as ONNX Runtime's int8 products. No fairseq in here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_plugins.models.layers import Projection


def weight_bits(processor: str, machine: str) -> int:
    """Return the bits of int8 weights whose products do not saturate.

    x86 processors without VNNI add pairs of products in 16 bits:
    https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html
    """
    return 8 if "vnni" in processor or machine not in ("x86_64", "AMD64") else 7


@contextmanager
def int8_products(projections: Sequence[Projection], bits: int) -> Iterator[None]:
    """Make exported projections int8 products in here."""
    with ExitStack() as stack:
        for item in projections:
            stack.enter_context(patch.dict(vars(item)))
            item.run_by(_Int8Map(item, bits))
        yield


class _Int8Map:
    """A projection whose weights have a scale for each output, and inputs one for all."""

    def __init__(self, projection: Projection, bits: int) -> None:
        assert projection.weight is not None
        weight = projection.weight.detach().t()  # (inputs, outputs)
        largest = weight.abs().amax(0).clamp(min=1e-12)
        self._scale = largest / (2 ** (bits - 1) - 1)
        self._zero = torch.zeros(len(largest), dtype=torch.int8)
        codes = (weight / self._scale).round_()
        self._weight = codes.to(torch.int8).contiguous()
        bias = projection.bias
        self._bias = torch.zeros_like(largest) if bias is None else bias.detach()
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
        _context: object, x: Tensor, weight: Tensor, scale: Tensor, _zero: Tensor, bias: Tensor
    ) -> Tensor:
        return F.linear(x, (weight * scale).t(), bias)

    @staticmethod
    def symbolic(graph: Any, x: Any, weight: Any, *others: object) -> object:
        kind = x.type()
        sizes = kind.sizes()
        if sizes:
            outputs = weight.type().sizes()[1:]
            kind = kind.with_sizes([*[None] * (len(sizes) - 1), *outputs])
        return graph.op("com.microsoft::DynamicQuantizeMatMul", x, weight, *others).setType(kind)
