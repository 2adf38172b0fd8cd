"""Stock fairseq Transformer layers, run with their own weights but our own attention.

Stock incremental decoding keeps only the last position and grows its caches by concatenation.
Here the caller passes self-attention as a function (over a cache, or over a training mask), so the
same forward serves training, drafting and verification.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec_plugins.host.fairseq_types import EncoderOut
from specdec_plugins.models.attention import Attend, attended, dropout

if TYPE_CHECKING:
    from fairseq.modules import LearnedPositionalEmbedding, SinusoidalPositionalEmbedding
    from fairseq.modules.transformer_layer import (
        TransformerDecoderLayerBase,
        TransformerEncoderLayerBase,
    )

    Positions: TypeAlias = "LearnedPositionalEmbedding | SinusoidalPositionalEmbedding"

#: Keys and values of cross-attention ``(layers, 2, batch, heads, source, dim)``, or a pair for each
#: layer.
KeysValues = Tensor | Sequence[tuple[Tensor, Tensor]]
Map = Callable[[Tensor], Tensor]


class Projection:
    """A linear map over the last dimension, then a ReLU if asked for."""

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        relu: bool = False,
        layers: Sequence[nn.Linear] = (),
    ) -> None:
        """``layers``: those that only run by it."""
        self.weight: Tensor | None = weight
        self.bias = bias
        self.relu = relu
        self.layers = layers
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
        """Let an engine compute it, which stores the weights in another form."""
        self._run = run
        self.release()

    def release(self) -> None:
        """Let go of the weights, which whatever runs it has by now."""
        self.weight = None
        self.bias = None


def _joined(*parts: nn.Linear) -> Projection:
    """Return several linear maps of the same input as one; it concatenates their outputs."""
    weight = torch.cat([part.weight for part in parts])
    bias = torch.cat([part.bias for part in parts])
    return Projection(weight, bias, layers=parts)


def projection(part: nn.Linear, relu: bool = False) -> Projection:
    """Return a linear layer as a projection."""
    return Projection(part.weight, part.bias, relu, [part])


def normalization(norm: nn.Module) -> Map:
    """Return a layer norm as a function, without a module's overhead where it is torch's own."""
    if type(norm) is not nn.LayerNorm:
        return norm
    return partial(
        torch.layer_norm,
        normalized_shape=norm.normalized_shape,
        weight=norm.weight,
        bias=norm.bias,
        eps=norm.eps,
    )


class LayerRunner:
    """The base of encoders' and decoders' layers, with projections that are prepared once.

    Build it anew where weights have changed (for each training pass). ``frozen``: the model is not
    in training.
    """

    def __init__(
        self, layer: TransformerEncoderLayerBase | TransformerDecoderLayerBase, frozen: bool = False
    ) -> None:
        attention = layer.self_attn
        self.layer = layer
        self.frozen = frozen
        self.heads = int(attention.num_heads)
        self.head_dim = int(attention.head_dim)
        self.self_input = _joined(attention.q_proj, attention.k_proj, attention.v_proj)
        self.self_output = projection(attention.out_proj)
        # The product and the ReLU in one call.
        self._fused = frozen and layer.activation_fn is F.relu
        self.fc1 = projection(layer.fc1, relu=self._fused)
        self.fc2 = projection(layer.fc2)
        self.norms_before = bool(layer.normalize_before)
        self.self_norm = normalization(layer.self_attn_layer_norm)
        self.final_norm = normalization(layer.final_layer_norm)

    @property
    def projections(self) -> list[Projection]:
        """All projections but those that read the source."""
        return [self.self_input, self.self_output, self.fc1, self.fc2]

    def _attend(self, x: Tensor, attend: Attend) -> Tensor:
        """Return self-attention and its residual, ``(batch, slots, channels)``."""
        normed = self.self_norm(x) if self.norms_before else x
        channels = self.heads * self.head_dim
        query, key_value = torch.split(self.self_input(normed), [channels, 2 * channels], -1)
        y = self.self_output(attend(query, key_value))
        return self._residual(x, y, self.self_norm)

    def _feed_forward(self, x: Tensor) -> Tensor:
        """Return the FFN and its residual."""
        normed = self.final_norm(x) if self.norms_before else x
        hidden = self.fc1(normed)
        if not self._fused:
            hidden = self.layer.activation_dropout_module(self.layer.activation_fn(hidden))
        return self._residual(x, self.fc2(hidden), self.final_norm)

    def _residual(self, x: Tensor, y: Tensor, norm: Map) -> Tensor:
        if not self.frozen:
            y = self.layer.dropout_module(y)
        x = x + y
        return x if self.norms_before else norm(x)


class EncoderLayerRunner(LayerRunner):
    """Runs one ``TransformerEncoderLayer``."""

    def __call__(self, x: Tensor, attend: Attend) -> Tensor:
        """Run the layer over ``x`` ``(batch, source, channels)``."""
        return self._feed_forward(self._attend(x, attend))


class DecoderLayerRunner(LayerRunner):
    """Runs one ``TransformerDecoderLayer``."""

    def __init__(self, layer: TransformerDecoderLayerBase, frozen: bool = False) -> None:
        super().__init__(layer, frozen)
        cross = layer.encoder_attn
        self.memory_input = _joined(cross.k_proj, cross.v_proj)
        self.query = projection(cross.q_proj)
        self.cross_output = projection(cross.out_proj)
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
        """Run the layer over ``x`` ``(batch, slots, channels)``.

        Args:
            memory: keys and values of :meth:`project`.
            only: ``(batch, slots)`` True for n slots, whose ``(n, channels)`` are returned: the
                FFN, a layer's larger half, runs for these alone.
        """
        x = self._attend(x, attend)
        normed = self.cross_norm(x) if self.norms_before else x
        keys, values = memory
        probability = 0.0 if self.frozen else dropout(self.layer.encoder_attn)
        y = attended(self.query(normed), keys, values, memory_mask, probability)
        y = self.cross_output(y)
        x = self._residual(x, y, self.cross_norm)
        if only is not None:
            x = x[only]
        return self._feed_forward(x)

    def project(self, encoder_out: Tensor) -> Tensor:
        """Return keys and values ``(2, batch, heads, source, dim)`` of cross-attention to states
        ``(source, batch, channels)``."""
        source, batch, _ = encoder_out.shape
        both = self.memory_input(encoder_out)
        both = both.view(source, batch, 2, self.heads, self.head_dim)
        return both.permute(2, 1, 3, 0, 4).contiguous()


def source_memory(runners: list[DecoderLayerRunner], encoder_out: Tensor) -> Tensor:
    """Return ``(layers, 2, batch, heads, source, dim)`` each layer's keys and values."""
    return torch.stack([runner.project(encoder_out) for runner in runners])


def with_layers(states: Tensor, inner: Sequence[Tensor]) -> Tensor:
    """Concatenate states after some layers, each normalised, and a decoder's last ``states``."""
    if not inner:
        return states
    # As an int, not a traced size: normalisation is over a fixed number of channels.
    normed = [F.layer_norm(x, [int(x.size(-1))]) for x in inner]
    return torch.cat([*normed, states], dim=-1)


def lowest(dtype: torch.dtype) -> float:
    """Return an additive mask's value for hidden positions."""
    return float(torch.finfo(dtype).min / 2)


@lru_cache(maxsize=64)
def _scalars(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):
        unseen = torch.tensor(lowest(dtype), dtype=dtype, device=device)
        return torch.zeros_like(unseen), unseen


def additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask to add to attention scores: 0 where ``allowed``, else so low that the weight is
    0, but finite: a softmax of minus infinities alone is NaN."""
    return torch.where(allowed, *_scalars(dtype, allowed.device))


def source_mask(encoder_out: EncoderOut, dtype: torch.dtype) -> Tensor | None:
    """Return the ``(batch, 1, 1, source)`` additive mask of an encoder's padding, if there is any.

    This waits for a GPU.
    """
    padding = encoder_out["encoder_padding_mask"]
    if not padding or not bool(padding[0].any()):
        return None
    return additive(~padding[0][:, None, None, :], dtype)


def position_table(embed_positions: Positions | None, length: int, padding: int) -> Tensor | None:
    """Return ``(length, channels)`` a module's embeddings of positions 0, 1, … of an unpadded row.

    A learned table that is shorter than ``length`` is returned whole.
    """
    if embed_positions is None:
        return None
    length = min(length, int(embed_positions.max_positions))
    tensors = (*embed_positions.parameters(), *embed_positions.buffers(), torch.empty(0))
    return embed_positions(torch.full((1, length), padding + 1, device=tensors[0].device))[0]


def positioned(x: Tensor, positions: Tensor, table: Tensor) -> Tensor:
    """Add to ``x`` ``(…, channels)`` its ``positions`` in a :func:`position_table`; beyond its end,
    the last one."""
    # As an embedding: on a CPU, three times as fast as indexing. Tracing sees size(), not len().
    return x + F.embedding(positions.clamp(max=table.size(0) - 1), table)
