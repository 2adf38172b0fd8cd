"""A decoder's weights as the writer reads them. No fairseq in here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec_plugins.engines.writer.kernel import (
    ACTIVATIONS,
    FAMILY,
    OFFSET,
    ROWS,
    ZERO,
    Model,
    in_order,
)
from specdec_plugins.models.layers import DecoderLayerRunner, Projection, position_table

#: Parts of a row's largest weight to try as the end of the 4-bit range.
CLIPS = (1.0, 0.9, 0.8, 0.7, 0.6)
#: Rows that are rounded at once.
CHUNK = 1024


def obstacle(decoder: Any) -> str | None:
    """Return the reason why the writer cannot run a decoder."""
    if FAMILY is None:
        return "the processor has none of its instructions"
    if decoder.project_in_dim is not None:
        return "embeddings have another width than layers"
    if type(decoder.output_projection) is not nn.Linear or decoder.quant_noise is not None:
        return "the output projection or the embedding is quantised or composed"
    kinds = {
        (layer.normalize_before, getattr(layer.activation_fn, "__name__", ""))
        for layer in decoder.layers
    }
    if len(kinds) > 1:
        return "layers differ"
    ((_, activation),) = kinds
    return None if activation in ACTIVATIONS else f"--activation-fn {activation}"


def model_of(
    decoder: Any,
    layers: Sequence[DecoderLayerRunner],
    pad: int,
    eos: int,
    penalties: Mapping[int, float],
) -> Model:
    """Return the weights of a decoder that has no :func:`obstacle`.

    Call it without gradients. ``penalties``: is subtracted from the logits of these tokens.
    """
    first = decoder.layers[0]
    projections = []
    norms = []
    for layer, runner in zip(decoder.layers, layers):
        projections += [runner.self_input, runner.self_output]
        projections += [runner.query, runner.cross_output, runner.fc1, runner.fc2]
        norms += [layer.self_attn_layer_norm, layer.encoder_attn_layer_norm, layer.final_layer_norm]
    norms += [decoder.layer_norm, decoder.layernorm_embedding]
    weights, scales, biases = zip(*map(_rounded, projections))
    shapes = np.array([weight.shape for weight in weights])
    sizes = np.stack([shapes.prod(1), shapes[:, 0]], 1)
    # Each begins where the one before ends.
    begins = np.cumsum(sizes, 0) - sizes
    output = decoder.output_projection
    projection = decoder.project_out_dim  # which has no bias
    screen, screen_scales = _in_4_bits(output.weight.float())
    token_biases = torch.full([len(screen)], -np.inf)
    token_biases[: output.out_features] = 0 if output.bias is None else output.bias
    token_biases[pad] = -np.inf
    for token, penalty in penalties.items():
        token_biases[token] -= penalty
    channels = int(first.embed_dim)
    longest = int(decoder.max_positions())
    table = position_table(decoder.embed_positions, longest, decoder.padding_idx)
    if table is None:
        table = torch.empty(0, channels)
    flat = np.concatenate([in_order(weight.numpy()).ravel() for weight in weights])
    all_norms = torch.stack([_norm(norm, channels) for norm in norms])
    return Model(
        weights=flat,
        scales=torch.cat(scales).numpy(),
        biases=torch.cat(biases).numpy(),
        products=np.concatenate([begins, shapes], 1),
        norms=all_norms.numpy(),
        screen=in_order(screen.numpy()),
        screen_scales=screen_scales.numpy(),
        token_biases=token_biases.numpy(),
        output=_array(output.weight),
        embeddings=_array(decoder.embed_tokens.weight),
        projection=_array(torch.empty(0, channels) if projection is None else projection.weight),
        positions=_array(table),
        pad=pad,
        eos=eos,
        heads=layers[0].heads,
        inner=int(first.fc1.out_features),
        embed_scale=float(decoder.embed_scale),
        epsilon=float(first.final_layer_norm.eps),
        activation=ACTIVATIONS.index(first.activation_fn.__name__),
        norms_before=bool(first.normalize_before),
        norms_last=decoder.layer_norm is not None,
        norms_embedding=decoder.layernorm_embedding is not None,
    )


def _rounded(projection: Projection) -> tuple[Tensor, Tensor, Tensor]:
    """Return a matrix in int8, and a scale and a bias for each row."""
    assert projection.weight is not None
    assert FAMILY is not None
    weight = _padded(projection.weight.float(), FAMILY.width)
    scales = largest_of(weight) / 127
    codes = (weight / scales).round() + OFFSET
    stored = codes.to(torch.int16) & 255
    biases = torch.zeros(len(scales))
    if projection.bias is not None:
        biases[: len(projection.bias)] = projection.bias
    return stored.to(torch.uint8), scales[:, 0], biases


def largest_of(rows: Tensor) -> Tensor:
    """Return ``(…, 1)`` the largest absolute number of each row, never quite 0."""
    largest = rows.abs().amax(-1, keepdim=True)
    return largest.clamp(min=ZERO)


def _padded(weight: Tensor, width: int) -> Tensor:
    """Return a matrix with zeros up to multiples of :data:`ROWS` rows and ``width`` columns."""
    rows, columns = weight.shape
    return F.pad(weight, (0, -columns % width, 0, -rows % ROWS))


def _in_4_bits(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return a matrix of two weights a byte, and a scale for each row.

    A row's scale is the one of :data:`CLIPS` that leaves the smallest squared error.
    """
    assert FAMILY is not None
    chunks = []
    scales = []
    for part in _padded(weight, 2 * FAMILY.width).split(CHUNK):  # type: ignore[no-untyped-call]
        largest = largest_of(part)
        best = largest.new_full(largest.shape, np.inf)
        codes = part
        scale = largest
        for clip in CLIPS:
            tried = largest * clip / 7
            rounded = (part / tried).round().clamp(-8, 7)
            difference = rounded * tried - part
            error = difference.square().sum(1, keepdim=True)
            better = error < best
            best = torch.where(better, error, best)
            codes = torch.where(better, rounded, codes)
            scale = torch.where(better, tried, scale)
        halves = (codes + 8).to(torch.uint8).view(len(codes), -1, 2, FAMILY.width)
        low, high = halves.unbind(2)
        chunks.append((low | (high << 4)).flatten(1))
        scales.append(scale[:, 0])
    return torch.cat(chunks), torch.cat(scales)


def _norm(norm: nn.LayerNorm | None, channels: int) -> Tensor:
    """Return ``(2, channels)`` weights and biases; those of a norm that is missing are not read."""
    if norm is None:
        return torch.zeros(2, channels)
    return torch.stack([norm.weight, norm.bias]).float()


def _array(x: Tensor) -> np.ndarray:
    """Return a tensor as an array, in the same memory if it is in float32."""
    return np.ascontiguousarray(x.float().numpy(force=True))
