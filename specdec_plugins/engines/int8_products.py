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

#: Instead of a largest value of zero.
SMALLEST = 1e-12


def weight_bits(processor: str, machine: str) -> int:
    """Return the bits of int8 weights whose products do not saturate.

    x86 processors without VNNI add pairs of products in 16 bits:
    https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html
    """
    return 8 if "vnni" in processor or machine not in ("x86_64", "AMD64") else 7


@contextmanager
def int8_products(
    projections: Sequence[Projection], bits: int, by_token: bool = False
) -> Iterator[None]:
    """Make exported projections int8 products in here.

    Args:
        bits: those of a weight.
        by_token: give each token a scale of its own.
    """
    with ExitStack() as stack:
        for item in projections:
            stack.enter_context(patch.dict(vars(item)))
            item.run_by(_Int8Map(item, bits, by_token))
        yield


class _Int8Map:
    """A projection whose weights have a scale for each output, and inputs one for all."""

    def __init__(self, projection: Projection, bits: int, by_token: bool) -> None:
        assert projection.weight is not None
        weight = projection.weight.detach().t()  # (inputs, outputs)
        largest = weight.abs().amax(0).clamp(min=SMALLEST)
        self._scale = largest / (2 ** (bits - 1) - 1)
        self._zero = torch.zeros(len(largest), dtype=torch.int8)
        codes = (weight / self._scale).round_()
        self._weight = codes.to(torch.int8).contiguous()
        bias = projection.bias
        self._bias = torch.zeros_like(largest) if bias is None else bias.detach()
        self._relu = projection.relu
        self._by_token = by_token

    def __call__(self, x: Tensor) -> Tensor:
        if self._by_token:
            # The product has one scale for its whole input. So all tokens get the largest value 1.
            peaks = x.abs().amax(-1, keepdim=True).clamp(min=SMALLEST)
            y = self._product(x / peaks, torch.zeros_like(self._bias)) * peaks + self._bias
        else:
            y = self._product(x, self._bias)
        return F.relu(y) if self._relu else y

    def _product(self, x: Tensor, bias: Tensor) -> Tensor:
        y: Tensor = _Int8Product.apply(  # type: ignore[no-untyped-call]
            x, self._weight, self._scale, self._zero, bias
        )
        return y


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
