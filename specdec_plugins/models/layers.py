"""Stock fairseq Transformer layers, run with their own weights but our own attention.

Stock incremental decoding keeps only the last position and grows its caches by concatenation.
Here the caller says how self-attention is done (over a cache, or over a training mask), so one
forward serves training, drafting and verification.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec_plugins.host.fairseq_types import EncoderOut

if TYPE_CHECKING:
    from fairseq.modules import (
        LearnedPositionalEmbedding,
        MultiheadAttention,
        SinusoidalPositionalEmbedding,
    )
    from fairseq.modules.transformer_layer import (
        TransformerDecoderLayerBase,
        TransformerEncoderLayerBase,
    )

    Positions: TypeAlias = "LearnedPositionalEmbedding | SinusoidalPositionalEmbedding"

Attend = Callable[[Tensor, Tensor], Tensor]
"""(queries ``(batch, slots, heads, dim)``, keys and values ``(batch, slots, 2, heads, dim)``)
-> ``(batch, slots, heads * dim)``."""
KeysValues = Tensor | Sequence[tuple[Tensor, Tensor]]
"""Cross-attention's, of all layers: ``(layers, 2, batch, heads, source, dim)``, or a pair of each
layer."""


Map = Callable[[Tensor], Tensor]


class Projection:
    """A linear map over the last dimension, then a ReLU if asked for."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, relu: bool = False) -> None:
        self.weight: Tensor | None = weight
        self.bias, self.relu = bias, relu
        self._run: Map | None = None

    def __call__(self, x: Tensor) -> Tensor:
        if self._run is not None:
            return self._run(x)
        assert self.weight is not None
        if self.relu and self.bias is not None and x.is_cuda:
            # On a GPU the product's kernel applies the ReLU.
            y = torch._addmm_activation(self.bias, x.flatten(0, -2), self.weight.t())
            return y.view(*x.shape[:-1], -1)
        y = F.linear(x, self.weight, self.bias)
        return F.relu(y) if self.relu else y

    def run_by(self, run: Map) -> None:
        """Let an engine compute it, which holds the weights in a form of its own."""
        self._run, self.weight, self.bias = run, None, None


def _joined(*parts: nn.Linear) -> Projection:
    """Several linear maps of the same input as one, their outputs one after another."""
    return Projection(torch.cat([p.weight for p in parts]), torch.cat([p.bias for p in parts]))


def projection(part: nn.Linear, relu: bool = False) -> Projection:
    """What a linear layer does."""
    return Projection(part.weight, part.bias, relu)


def normalization(norm: nn.Module) -> Map:
    """What a layer norm does, without a module's detours where it is torch's own."""
    if type(norm) is not nn.LayerNorm:
        return lambda x: norm(x)
    shape, weight, bias, epsilon = norm.normalized_shape, norm.weight, norm.bias, norm.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, epsilon)


class LayerRunner:
    """What an encoder's and a decoder's layer have in common; projections are prepared once.

    Build it anew where the weights have changed (each training pass); keep it while they have not,
    and say then that they are ``frozen``: of a model that is not in training.
    """

    def __init__(
        self,
        layer: TransformerEncoderLayerBase | TransformerDecoderLayerBase,
        frozen: bool = False,
    ) -> None:
        attention = layer.self_attn
        self.layer = layer
        self.frozen = frozen
        self.heads = int(attention.num_heads)
        self.head_dim = int(attention.head_dim)
        parts = attention.q_proj, attention.k_proj, attention.v_proj
        self.self_input = _joined(*parts)
        self.self_output = projection(attention.out_proj)
        # The two steps of a ReLU layer in one call, where they can be.
        self._fused = frozen and layer.activation_fn is F.relu
        self.fc1 = projection(layer.fc1, relu=self._fused)
        self.fc2 = projection(layer.fc2)
        self.norms_before = bool(layer.normalize_before)
        self.self_norm = normalization(layer.self_attn_layer_norm)
        self.final_norm = normalization(layer.final_layer_norm)

    @property
    def projections(self) -> list[Projection]:
        """The projections of which the layer consists, but for those that read the source."""
        return [self.self_input, self.self_output, self.fc1, self.fc2]

    def _attend(self, x: Tensor, attend: Attend) -> Tensor:
        """Self-attention and its residual, ``(batch, slots, channels)``."""
        normed = self.self_norm(x) if self.norms_before else x
        batch, slots, _ = normed.shape
        qkv = self.self_input(normed).view(batch, slots, 3, self.heads, -1)
        y = self.self_output(attend(qkv[:, :, 0], qkv[:, :, 1:]))
        return self._residual(x, y, self.self_norm)

    def _feed_forward(self, x: Tensor) -> Tensor:
        """Return the FFN and its residual."""
        hidden = self.fc1(self.final_norm(x) if self.norms_before else x)
        if not self._fused:
            layer = self.layer
            hidden = layer.activation_dropout_module(layer.activation_fn(hidden))
        return self._residual(x, self.fc2(hidden), self.final_norm)

    def _residual(self, x: Tensor, y: Tensor, norm: Map) -> Tensor:
        x = x + (y if self.frozen else self.layer.dropout_module(y))
        return x if self.norms_before else norm(x)


class EncoderLayerRunner(LayerRunner):
    """Runs one ``TransformerEncoderLayer``."""

    def __call__(self, x: Tensor, attend: Attend) -> Tensor:
        """One layer over ``x`` ``(batch, source, channels)``."""
        return self._feed_forward(self._attend(x, attend))


class DecoderLayerRunner(LayerRunner):
    """Runs one ``TransformerDecoderLayer``."""

    def __init__(self, layer: TransformerDecoderLayerBase, frozen: bool = False) -> None:
        super().__init__(layer, frozen)
        cross = layer.encoder_attn
        self.memory_input = _joined(cross.k_proj, cross.v_proj)
        self.query, self.cross_output = projection(cross.q_proj), projection(cross.out_proj)
        self.cross_norm = normalization(layer.encoder_attn_layer_norm)

    @property
    def projections(self) -> list[Projection]:
        return [*super().projections, self.query, self.cross_output]

    def __call__(
        self,
        x: Tensor,
        attend: Attend,
        memory: Tensor,
        memory_mask: Tensor | None,
        only: Tensor | None = None,
    ) -> Tensor:
        """One layer over ``x`` ``(batch, slots, channels)``; ``memory`` is :meth:`project`'s.

        ``only`` ``(batch, slots)``: True where the result is wanted. Then it is ``(n, channels)``
        of these n slots, and the FFN, a layer's larger half, is spared all others.
        """
        x = self._attend(x, attend)
        normed = self.cross_norm(x) if self.norms_before else x
        batch, slots, _ = normed.shape
        query = self.query(normed).view(batch, slots, self.heads, -1)
        keys, values = memory
        y = self.cross_output(attended(query, keys, values, memory_mask, self._dropout()))
        x = self._residual(x, y, self.cross_norm)
        return self._feed_forward(x if only is None else x[only])

    def _dropout(self) -> float:
        return 0.0 if self.frozen else dropout(self.layer.encoder_attn)

    def project(self, encoder_out: Tensor) -> Tensor:
        """Cross-attention keys and values, ``(2, batch, heads, source, dim)``.

        ``encoder_out`` is ``(source, batch, channels)``, as fairseq's encoders give it.
        """
        source, batch, _ = encoder_out.shape
        both = self.memory_input(encoder_out).view(source, batch, 2, self.heads, -1)
        return both.permute(2, 1, 3, 0, 4).contiguous()


def source_memory(runners: list[DecoderLayerRunner], encoder_out: Tensor) -> Tensor:
    """``(layers, 2, batch, heads, source, dim)``: what each layer projects."""
    return torch.stack([runner.project(encoder_out) for runner in runners])


def attended(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, probability: float = 0.0
) -> Tensor:
    """``(batch, slots, heads * dim)`` of queries ``(batch, slots, heads, dim)``.

    Args:
        keys, values: ``(batch, heads, n, dim)``.
        mask: to be added to the scores.
        probability: of dropout, of which what is traced has none.
    """
    query = query.transpose(1, 2)
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        # Step by step: OpenVINO makes torch's own function multiply and transpose all keys first.
        scores = (query * int(query.size(-1)) ** -0.5) @ keys.transpose(-1, -2)
        y = (scores if mask is None else scores + mask).softmax(-1) @ values
    else:
        y = F.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, dropout_p=probability
        )
    return y.transpose(1, 2).flatten(2)


def among_themselves(mask: Tensor | None, attention: MultiheadAttention) -> Attend:
    """Self-attention among the slots of one pass, with an additive ``mask`` or all of them."""
    probability = dropout(attention)

    def attend(query: Tensor, key_value: Tensor) -> Tensor:
        keys, values = key_value.permute(2, 0, 3, 1, 4)
        return attended(query, keys, values, mask, probability)

    return attend


def with_layers(states: Tensor, inner: Sequence[Tensor]) -> Tensor:
    """Return a decoder's states ``(…, channels)``, and before them, each normalised, those after
    some of its layers, ``(…, channels)`` as well."""
    if not inner:
        return states
    # Not of a traced size: normalisation is over a fixed number of channels.
    normed = [F.layer_norm(x, [int(x.size(-1))]) for x in inner]
    return torch.cat([*normed, states], dim=-1)


def dropout(attention: MultiheadAttention) -> float:
    """Return the dropout probability of an attention's weights in its present mode."""
    return float(attention.dropout_module.p) if attention.training else 0.0


def lowest(dtype: torch.dtype) -> float:
    """Return what an additive mask has for what is not seen."""
    return float(torch.finfo(dtype).min / 2)


@lru_cache(maxsize=64)
def _scalars(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):
        unseen = torch.tensor(lowest(dtype), dtype=dtype, device=device)
        return torch.zeros_like(unseen), unseen


def additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an attention mask to add to the scores: 0 where ``allowed``, else so little that the
    weight is 0. It is finite: of minus infinities alone a softmax would make NaN."""
    return torch.where(allowed, *_scalars(dtype, allowed.device))


def source_mask(encoder_out: EncoderOut, dtype: torch.dtype) -> Tensor | None:
    """``(batch, 1, 1, source)`` additive mask of an encoder's padding, or None without padding.

    Looks at the padding: a device-to-host read, once a batch and model.
    """
    padding = encoder_out["encoder_padding_mask"]
    if not padding or not bool(padding[0].any()):
        return None
    return additive(~padding[0][:, None, None, :], dtype)


def position_table(embed_positions: Positions | None, length: int, padding: int) -> Tensor | None:
    """``(length, channels)``: what the module adds at positions 0, 1, … of an unpadded row.

    Asks the module itself, so it holds for learned and sinusoidal positions of every fairseq. A
    learned table that is shorter than ``length`` is returned whole.
    """
    if embed_positions is None:
        return None
    length = min(length, int(embed_positions.max_positions))
    tensors = (*embed_positions.parameters(), *embed_positions.buffers(), torch.empty(0))
    row = torch.full((1, length), padding + 1, device=tensors[0].device)
    return embed_positions(row)[0]


def positioned(x: Tensor, positions: Tensor, table: Tensor) -> Tensor:
    """``x`` ``(…, channels)`` and, added to it, what a :func:`position_table` holds for its
    ``positions``; beyond its end, the last one."""
    # As an embedding: on a CPU, three times as fast as indexing. What traces this sees size(), not
    # len().
    return x + F.embedding(positions.clamp(max=table.size(0) - 1), table)
