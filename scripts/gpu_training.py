"""The parts of ``scripts/train_on_gpu.py``: text on the device, a verifier's loss, updates.

All of an update is tensor code on fixed memory, so that a GPU can record and replay it: launching
one operation after another takes longer than computing it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import count
from typing import Any, NamedTuple

import installed  # noqa: F401 (first)
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from specdec_plugins.data import block_mask
from specdec_plugins.host.fairseq_types import Sample
from specdec_plugins.models.attention import among_themselves
from specdec_plugins.models.layers import (
    DecoderLayerRunner,
    EncoderLayerRunner,
    additive,
    position_table,
    positioned,
)

#: Special symbols of every dictionary of fairseq.
PAD = 1
EOS = 2
LENGTHS = (16, 24, 32, 48, 64, 96, 128, 192, 288)
"""Tokens of the longer side of a batch's sentences: each length is recorded once."""
SMOOTHING = 0.1
CLIP = 1.0
WARM_UP = 0.04
AVERAGING = 0.002
BLOCKS = 4
"""Blocks of a drafter's sentence."""
JOINED = (90, 240)
"""Source tokens of a pair that is made of several: from, and below."""


class Batch(NamedTuple):
    """Pairs of sentences, padded at their ends to one length."""

    #: ``(rows, length)``
    source: Tensor
    #: ``(rows, length)``
    target: Tensor
    #: ``(rows, length)`` an EOS, then the target: what the decoder reads.
    before: Tensor


class Drawn(NamedTuple):
    """A batch, and where it is from."""

    epoch: int
    #: ``(rows,)``
    pairs: Tensor
    batch: Batch


class Text:
    """Pairs on the device: ``2 i`` is the source of pair i, ``2 i + 1`` its target."""

    def __init__(self, tokens: NDArray[np.integer], device: torch.device) -> None:
        """``tokens``: of all sides in turn, an EOS after each."""
        ends = np.flatnonzero(tokens == EOS) + 1
        starts = np.concatenate([[0], ends[:-1]])
        self.sizes = (ends - starts).reshape(-1, 2)
        arrays = [array.astype(np.int64) for array in (tokens, starts, ends - starts)]
        self._tokens, self._starts, self._lengths = (
            torch.from_numpy(array).to(device) for array in arrays
        )

    def batches(
        self, chosen: NDArray[np.integer], tokens: int, draw: np.random.Generator
    ) -> Iterator[Drawn]:
        """Yield the batches of one epoch after another, without end."""
        for epoch in count():
            for length, pairs in self.epoch(chosen, tokens, draw):
                ids = torch.from_numpy(pairs).to(self._tokens.device)
                yield Drawn(epoch, ids, self.batch(ids, length))

    def batch(self, pairs: Tensor, length: int) -> Batch:
        """Return a batch of some pairs."""
        source, target = (self.padded(2 * pairs + side, length) for side in (0, 1))
        before = F.pad(target[:, :-1], (1, 0), value=EOS)
        return Batch(source, target, before)

    def padded(self, sides: Tensor, length: int) -> Tensor:
        """Return ``(rows, length)`` the tokens of some sides."""
        index = torch.arange(length, device=sides.device)
        positions = self._starts[sides][:, None] + index
        tokens = self._tokens[positions.clamp(max=len(self._tokens) - 1)]
        return tokens.masked_fill(index >= self._lengths[sides][:, None], PAD)

    def epoch(
        self, chosen: NDArray[np.integer], tokens: int, draw: np.random.Generator
    ) -> Iterator[tuple[int, NDArray[np.integer]]]:
        """Yield the length and the pairs of each batch, in random order.

        Batches of a length have the same number of rows, so that they can be recorded.
        """
        longest = self.sizes[chosen].max(1)
        batches = []
        for low, length in zip((0, *LENGTHS), LENGTHS):
            pairs = draw.permutation(chosen[(longest > low) & (longest <= length)])
            rows = max(1, tokens // length)
            # The last batch is filled up with the first pairs.
            count = -(-len(pairs) // rows)
            full = np.resize(pairs, (count, rows))
            batches += [(length, part) for part in full]
        yield from (batches[i] for i in draw.permutation(len(batches)))


def count_pairs(tokens: NDArray[np.integer]) -> int:
    """Return the number of pairs of a text's tokens."""
    return int((tokens == EOS).sum()) // 2


def with_joined_pairs(tokens: NDArray[np.uint16], draw: np.random.Generator) -> NDArray[np.uint16]:
    """Append pairs that are several pairs, one after another: they teach long inputs.

    Of all tokens they are a tenth. For pairs a → x and b → y: a b → x y.
    """
    sides = np.split(tokens, np.flatnonzero(tokens == EOS) + 1)[:-1]
    parts = [tokens]
    missing = len(tokens) // 10
    while missing > 0:
        joined: tuple[list[NDArray[np.uint16]], list[NDArray[np.uint16]]] = ([], [])
        length = int(draw.integers(*JOINED))
        while sum(map(len, joined[0])) < length:
            pair = int(draw.integers(len(sides) // 2))
            for side in (0, 1):
                joined[side].append(sides[2 * pair + side][:-1])
        for side in (0, 1):
            parts += [*joined[side], np.array([EOS], np.uint16)]
            missing -= sum(map(len, joined[side]))
    return np.concatenate(parts)


def drafter_sample(drawn: Drawn) -> Sample:
    """Return a drafter's sample, with the cuts that the task would draw."""
    source, target, _ = drawn.batch
    seeds = block_mask.sentence_seeds(drawn.pairs, drawn.epoch)
    uniforms = block_mask.sentence_uniforms(seeds, block_mask.CUTS, BLOCKS)
    return {
        "net_input": {"src_tokens": source, "src_lengths": (source != PAD).sum(1)},
        "target": target,
        "ntokens": 0,
        "seeds": seeds,
        "cuts": block_mask.sample_cuts((target != PAD).sum(1), uniforms),
        "glancing_ratio": 0.0,
    }


def verifier_states(model: Any, source: Tensor, before: Tensor) -> Tensor:
    """Return ``(rows, length, channels)`` the states that predict the tokens after ``before``."""
    encoder = model.encoder
    decoder = model.decoder
    dtype = encoder.embed_tokens.weight.dtype
    seen = source != PAD
    padding = additive(seen[:, None, None], dtype)
    mask = padding.expand(-1, -1, source.size(1), -1)
    x = encoder.embed_scale * encoder.embed_tokens(source)
    numbers = (seen.cumsum(1) - 1).clamp(min=0)
    x = positioned(x, numbers, positions(encoder, source.size(1)))
    if encoder.layernorm_embedding is not None:
        x = encoder.layernorm_embedding(x)
    x = encoder.dropout_module(x) * seen[..., None]
    for layer in encoder.layers:
        x = EncoderLayerRunner(layer)(x, among_themselves(mask, layer.self_attn))
    memory = normalised(encoder, x).transpose(0, 1)

    length = before.size(1)
    causal = torch.ones(length, length, device=before.device, dtype=torch.bool).tril()
    causal_mask = additive(causal, dtype).expand(len(before), 1, -1, -1)
    memory_mask = padding.expand(-1, -1, length, -1)
    x = decoder.embed_scale * decoder.embed_tokens(before) + positions(decoder, length)
    if decoder.layernorm_embedding is not None:
        x = decoder.layernorm_embedding(x)
    x = decoder.dropout_module(x)
    for layer in decoder.layers:
        runner = DecoderLayerRunner(layer)
        attend = among_themselves(causal_mask, layer.self_attn)
        x = runner(x, attend, runner.project(memory), memory_mask)
    return normalised(decoder, x)


def normalised(part: Any, x: Tensor) -> Tensor:
    """Return the states behind the last layer, which only pre-norm models normalise there."""
    y: Tensor = x if part.layer_norm is None else part.layer_norm(x)
    return y


def positions(part: Any, length: int) -> Tensor:
    """Return ``(length, channels)`` an encoder's or a decoder's embeddings of positions."""
    table = position_table(part.embed_positions, length, PAD)
    assert table is not None
    return table.to(part.embed_tokens.weight.dtype)


def verifier_loss(model: Any, batch: Batch, whole_words: Tensor) -> tuple[Tensor, Tensor]:
    """Return fairseq's label-smoothed cross entropy and an unlikelihood, in nats a target token.

    The second (Welleck et al., ICLR 2020) is that of writing the token before again, where this is
    a whole word ``(vocab,)`` and not what the target has.
    """
    logits = model.decoder.output_layer(verifier_states(model, batch.source, batch.before))
    logits = logits.flatten(0, 1).float()
    target = batch.target.flatten()
    before = batch.before.flatten()
    # fairseq spreads the smoothing over all tokens but the right one, torch over all of them.
    smoothing = SMOOTHING * logits.size(1) / (logits.size(1) - 1)
    loss = F.cross_entropy(
        logits, target, ignore_index=PAD, label_smoothing=smoothing, reduction="sum"
    )
    of_before = logits.gather(1, before[:, None])[:, 0]
    repeated = of_before - logits.logsumexp(1)
    wrong = whole_words[before] & (before != target) & (target != PAD)
    probability = repeated.exp().clamp(max=0.999)
    unlikelihood = -torch.log1p(-probability) * wrong
    count = (target != PAD).sum()
    return loss / count, unlikelihood.sum() / count


class Trained:
    """A model in bfloat16 (on a CPU in float32), its weights in float32, and their average."""

    def __init__(self, model: Any, rate: float, device: torch.device) -> None:
        """``model`` becomes the moving average; ``rate``: the highest learning rate."""
        on_gpu = device.type == "cuda"
        dtype = torch.bfloat16 if on_gpu else torch.float32
        self._highest = rate
        self.averaged = model.float()
        self.model = deepcopy(model).to(dtype)
        self._weights = [x for x in self.model.parameters() if x.requires_grad]
        self._exact = [x.detach().to(torch.float32, copy=True) for x in self._weights]
        self._average = [x.detach() for x in model.parameters() if x.requires_grad]
        for weight, exact in zip(self._weights, self._exact, strict=True):
            weight.grad = torch.zeros_like(weight)
            exact.grad = torch.zeros_like(exact)
        self._gradients = [weight.grad for weight in self._weights]
        # On a GPU a tensor, which recorded updates read.
        self._rate = torch.tensor(0.0, device=device)
        settings: dict[str, Any] = {"fused": True, "capturable": True} if on_gpu else {}
        self._adam = torch.optim.Adam(self._exact, lr=self._rate, betas=(0.9, 0.98), **settings)

    def set_rate(self, done: float) -> None:
        """Set the rate for a part of the time, 0 to 1: it rises, then falls to 0."""
        self._rate.fill_(self._highest * min(done / WARM_UP, (1 - done) / (1 - WARM_UP)))

    def update(self, loss: Callable[[], Tensor]) -> None:
        """Make an update by operations on the same memory, which can be recorded."""
        torch._foreach_zero_(self._gradients)
        loss().backward()  # type: ignore[no-untyped-call]
        torch._foreach_copy_([exact.grad for exact in self._exact], self._gradients)
        nn.utils.clip_grad_norm_(self._exact, CLIP, foreach=True)
        self._adam.step()
        with torch.no_grad():
            torch._foreach_copy_(self._weights, self._exact)
            torch._foreach_lerp_(self._average, self._exact, AVERAGING)
