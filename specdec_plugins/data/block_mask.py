"""The ``block_mask`` noise: which blocks of a target are masked, and which slots are scored.

Everything is vectorised over the batch, on whatever device the target is. A target row is
``y_0 … y_{n-1}`` (EOS included) and right padding. A *cut* p leaves the prefix ``y_0 … y_{p-1}``
and masks the block of k slots after it; slots past the end of the sentence are masks too, but are
not scored (SpecDec, Xia et al., EMNLP 2023 Findings, §3.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), as signed integers, which torch's wrap.
GAMMA = 0x9E3779B97F4A7C15 - 2**64
FACTORS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)
#: Streams of a sentence's random numbers, by use.
CUTS, GLANCING, HIDING = range(3)


def sample_cuts(lengths: Tensor, uniforms: Tensor) -> Tensor:
    """Cuts ``n - (floor(n u) + 1)``, uniform on 0 … n-1: EOS is never in the prefix.

    Args:
        lengths: ``(batch,)`` target lengths n, EOS included.
        uniforms: ``(batch, blocks)`` in [0, 1). Block c of C draws from the c-th C-th of the
            sentence, so that several blocks are spread over it.

    Returns:
        ``(batch, blocks)`` prefix lengths.
    """
    blocks = uniforms.size(1)
    longest = lengths[:, None]  # (batch, 1)
    strata = (uniforms + torch.arange(blocks, device=uniforms.device)) / blocks
    drawn = (longest * strata).long() + 1
    return longest - torch.minimum(drawn, longest)


def _mix(x: Tensor) -> Tensor:
    """Spread every bit of 64-bit integers over all of them."""
    for shift, factor in zip((30, 27), FACTORS):
        x = (x ^ _shifted(x, shift)) * factor
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Shifted right, as unsigned integers are."""
    return (x >> bits) & (2 ** (64 - bits) - 1)


def sentence_seeds(ids: Tensor, seed: int) -> Tensor:
    """Return a seed for each sentence ``(batch,)``, of a seed and the sentence's id alone.

    A sentence's noise is then the same in whatever batch, and on whichever of several workers, it
    comes up in an update.
    """
    start = torch.tensor(seed % 2**63, device=ids.device)
    return _mix(_mix(ids) + start * GAMMA)


def sentence_uniforms(seeds: Tensor, stream: int, *shape: int) -> Tensor:
    """``(batch, *shape)`` random numbers in [0, 1) in float32, each row's from its seed alone.

    Args:
        seeds: ``(batch,)`` of :func:`sentence_seeds`.
        stream: ``CUTS``, ``GLANCING`` or ``HIDING``; different streams are independent.
    """
    count = math.prod(shape)
    index = torch.arange(count, device=seeds.device) + (stream * 2**32 + 1)
    mixed = _mix(seeds[:, None] + index * GAMMA)  # (batch, count)
    bits = _shifted(mixed, 40)
    return (bits.float() / 2**24).view(len(seeds), *shape)


@dataclass(frozen=True)
class Blocks:
    """The masked blocks of a batch; every tensor is ``(batch, blocks, slots)``."""

    #: ``(batch, blocks)`` prefix lengths.
    cuts: Tensor
    #: The target position that each slot stands for.
    positions: Tensor
    #: The target token of each slot, pad where there is none.
    gold: Tensor
    #: True where the target has a token.
    scored: Tensor

    @classmethod
    def cut(cls, target: Tensor, cuts: Tensor, block_size: int, pad: int) -> Blocks:
        """Return the blocks of ``block_size`` slots after ``cuts`` in ``target`` ``(batch,
        length)``."""
        positions = cuts[..., None] + torch.arange(block_size, device=cuts.device)
        inside = positions < target.size(1)
        index = positions.clamp(max=target.size(1) - 1)
        gold = target.gather(1, index.flatten(1)).view_as(positions)
        gold.masked_fill_(~inside, pad)
        return cls(cuts, positions, gold, gold != pad)

    def spread(self, values: Tensor) -> Tensor:
        """``(batch, blocks, slots)``: the values ``(n,)`` of the scored slots in their places, 0
        elsewhere."""
        return values.new_zeros(self.scored.shape).masked_scatter(self.scored, values)


def glance(
    gold: Tensor, predicted: Tensor, scored: Tensor, ratio: float, uniforms: Tensor
) -> Tensor:
    """Return the slots to reveal: ``floor((scored - correct) ratio)`` of each block, chosen at
    random.

    Glancing (Qian et al., ACL 2021, §3.2): the more slots the drafter already predicts, the fewer
    it is shown.

    Args:
        gold, predicted, scored: ``(batch, blocks, slots)``.
        ratio: part of the wrong slots to reveal, 0 … 1.
        uniforms: ``(batch, blocks, slots)`` random numbers in [0, 1).

    Returns:
        ``(batch, blocks, slots)`` True where the slot is given its gold token.
    """
    wrong = ((predicted != gold) & scored).sum(-1, keepdim=True)
    count = (wrong * ratio).floor().long()
    order = uniforms.masked_fill(~scored, 2.0).argsort(-1)
    return order.argsort(-1) < count
