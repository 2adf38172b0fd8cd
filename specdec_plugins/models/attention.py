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

Attend = Callable[[Tensor, Tensor], Tensor]
"""(queries ``(batch, slots, channels)``, keys and values ``(batch, slots, 2 * channels)``)
-> ``(batch, slots, channels)``."""


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


def self_attended(
    query: Tensor,
    key_value: Tensor,
    heads: int,
    mask: Tensor | None,
    past: tuple[Tensor, Tensor] | None = None,
    probability: float = 0.0,
) -> Tensor:
    """Return attention of slots to each other, and to ``past`` keys and values ``(batch, heads,
    width, dim)``; see :data:`Attend`."""
    if torch.onnx.is_in_onnx_export():
        keys, values = torch.split(key_value, int(key_value.size(-1)) // 2, -1)
        return _exported(heads, query, keys, values, mask, *past or ())
    keys, values = split_heads(key_value, heads)
    if past is not None:
        keys, values = torch.cat([past[0], keys], dim=2), torch.cat([past[1], values], dim=2)
    return attended(query, keys, values, mask, probability)


def split_heads(key_value: Tensor, heads: int) -> Tensor:
    """Return ``(2, batch, heads, slots, dim)`` for keys and values of :data:`Attend`."""
    batch, slots, _ = key_value.shape
    return key_value.view(batch, slots, 2, heads, -1).permute(2, 0, 3, 1, 4)


def among_themselves(mask: Tensor | None, attention: MultiheadAttention) -> Attend:
    """Return self-attention among the slots of a pass, with an additive ``mask``."""
    probability, heads = dropout(attention), int(attention.num_heads)

    def attend(query: Tensor, key_value: Tensor) -> Tensor:
        return self_attended(query, key_value, heads, mask, probability=probability)

    return attend


def dropout(attention: MultiheadAttention) -> float:
    """Return the dropout probability of an attention's weights in its present mode."""
    return float(attention.dropout_module.p) if attention.training else 0.0


class _Exported(torch.autograd.Function):
    """ONNX Runtime's operator, one node in place of some fifteen."""

    @staticmethod
    def forward(context: object, heads: int, query: Tensor, *others: Tensor | None) -> Tensor:
        return query.clone()  # Exporting needs the shape alone.

    @staticmethod
    def symbolic(graph: Any, heads: int, *inputs: Any) -> object:
        # https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
        none = symbolic_helper._optional_input_placeholder_tensor(  # type: ignore[no-untyped-call]
            graph
        )
        query, keys, values, mask, *past = inputs
        inputs = (query, keys, values, none, none, none if mask is None else mask, *past)
        y, *_ = graph.op("com.microsoft::MultiHeadAttention", *inputs, num_heads_i=heads, outputs=3)
        return y.setType(query.type())


def _exported(heads: int, *inputs: Tensor | None) -> Tensor:
    y: Tensor = _Exported.apply(heads, *inputs)  # type: ignore[no-untyped-call]
    return y
