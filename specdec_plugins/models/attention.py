"""Attention of several heads, in torch and in exported models."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.onnx import symbolic_helper

if TYPE_CHECKING:
    from fairseq.modules import MultiheadAttention

#: (queries ``(batch, slots, channels)``, keys and values ``(batch, slots, 2 * channels)``) ->
#: ``(batch, slots, channels)``.
Attend = Callable[[Tensor, Tensor], Tensor]


def attended(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, probability: float = 0.0
) -> Tensor:
    """Return attention ``(batch, slots, channels)`` for queries of that shape.

    ``keys``, ``values``: ``(batch, heads, n, dim)``; ``mask`` is added to the scores.
    """
    heads = int(keys.size(1))
    if torch.onnx.is_in_onnx_export():
        return _exported(heads, query, keys, values, mask)
    batch, slots, _ = query.shape
    query = query.view(batch, slots, heads, -1).transpose(1, 2)
    y = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, dropout_p=probability)
    return y.transpose(1, 2).flatten(2)


def split_heads(key_value: Tensor, heads: int) -> Tensor:
    """Return ``(2, batch, heads, slots, dim)`` for keys and values of :data:`Attend`."""
    batch, slots, _ = key_value.shape
    return key_value.view(batch, slots, 2, heads, -1).permute(2, 0, 3, 1, 4)


def among_themselves(mask: Tensor | None, attention: MultiheadAttention) -> Attend:
    """Return self-attention among the slots of a pass, with an additive ``mask``."""
    probability = dropout(attention)
    heads = int(attention.num_heads)

    def attend(query: Tensor, key_value: Tensor) -> Tensor:
        if torch.onnx.is_in_onnx_export():
            parts = torch.split(key_value, int(key_value.size(-1)) // 2, -1)
            return _exported(heads, query, *parts, mask)
        keys, values = split_heads(key_value, heads)
        return attended(query, keys, values, mask, probability)

    return attend


def dropout(attention: MultiheadAttention) -> float:
    """Return the dropout probability of an attention's weights in its present mode."""
    return float(attention.dropout_module.p) if attention.training else 0.0


class _Exported(torch.autograd.Function):
    """ONNX Runtime's operator, one node in place of some fifteen."""

    @staticmethod
    def forward(_context: object, _heads: int, query: Tensor, *_others: Tensor | None) -> Tensor:
        return query.clone()  # Exporting needs the shape alone.

    @staticmethod
    def symbolic(graph: Any, heads: int, *inputs: Any) -> object:
        # https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
        none = symbolic_helper._optional_input_placeholder_tensor(  # type: ignore[no-untyped-call]
            graph
        )
        query, keys, values, mask = inputs
        if mask is None:
            mask = none
        y = graph.op(
            "com.microsoft::MultiHeadAttention",
            query,
            keys,
            values,
            none,
            none,
            mask,
            num_heads_i=heads,
        )
        return y.setType(query.type())


def _exported(heads: int, *inputs: Tensor | None) -> Tensor:
    y: Tensor = _Exported.apply(heads, *inputs)  # type: ignore[no-untyped-call]
    return y


def stored(past: Tensor, indices: Tensor, new: Tensor) -> Tensor:
    """Write ``new`` keys or values ``(batch, slots, channels)`` to ``past`` ``(batch, heads, width,
    dim)``; return what to read instead.

    ``indices``: ``(batch, slots, heads, 3)``.
    """
    if torch.onnx.is_in_onnx_export():
        heads = int(past.size(1))
        y: Tensor = _Stored.apply(heads, past, indices, new)  # type: ignore[no-untyped-call]
        return y
    past[indices.unbind(-1)] = new.view(*indices.shape[:-1], -1)
    return past


class _Stored(torch.autograd.Function):
    """ONNX's operator, which copies nothing if its result lies where ``past`` does."""

    @staticmethod
    def forward(_context: object, _heads: int, past: Tensor, *_others: Tensor) -> Tensor:
        return past.clone()  # Exporting needs the shape alone.

    @staticmethod
    def symbolic(graph: Any, heads: int, past: Any, indices: Any, new: Any) -> object:
        shape = graph.op("Constant", value_t=torch.tensor([0, 0, heads, -1]))
        new = graph.op("Reshape", new, shape)
        return graph.op("ScatterND", past, indices, new).setType(past.type())
