"""The ``block_mask`` noise: which blocks of a target are masked, and which slots are scored.

Everything is vectorised over the batch, on whatever device the target is. A target row is
``y_0 … y_{n-1}`` (EOS included) and right padding. A *cut* p leaves the prefix ``y_0 … y_{p-1}``
and masks the block of k slots after it; slots past the end of the sentence are masks too, but are
not scored (SpecDec, Xia et al., EMNLP 2023 Findings, §3.1).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GOLDEN_RATIO = 0.6180339887498949


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
    strata = (uniforms + torch.arange(blocks, device=uniforms.device)) / blocks
    drawn = (lengths[:, None] * strata).floor().long() + 1
    return lengths[:, None] - torch.minimum(drawn, lengths[:, None])


def fixed_uniforms(ids: Tensor, blocks: int) -> Tensor:
    """``(batch, blocks)`` in [0, 1) that depend on the sentences' ids alone.

    Validation uses them: the same prefixes every time, however sentences are batched. The
    multiples of the golden ratio, modulo 1, are spread evenly for any run of ids.
    """
    index = ids[:, None] * blocks + torch.arange(blocks, device=ids.device) + 1
    return (index.double() * GOLDEN_RATIO) % 1.0


@dataclass(frozen=True)
class Blocks:
    """The masked blocks of a batch; every tensor is ``(batch, blocks, slots)``."""

    cuts: Tensor
    """``(batch, blocks)`` prefix lengths."""
    positions: Tensor
    """The target position that each slot stands for."""
    gold: Tensor
    """The target token of each slot, pad where there is none."""
    scored: Tensor
    """True where the target has a token."""

    @classmethod
    def cut(cls, target: Tensor, cuts: Tensor, block_size: int, pad: int) -> Blocks:
        """The blocks of ``block_size`` slots after ``cuts`` in ``target`` ``(batch, length)``."""
        positions = cuts[..., None] + torch.arange(block_size, device=cuts.device)
        inside = positions < target.size(1)
        index = positions.clamp(max=target.size(1) - 1).flatten(1)
        gold = target.gather(1, index).view_as(positions).masked_fill(~inside, pad)
        return cls(cuts, positions, gold, gold != pad)


def glance(
    gold: Tensor, predicted: Tensor, scored: Tensor, ratio: float, uniforms: Tensor
) -> Tensor:
    """The slots to reveal: ``floor((scored - correct) ratio)`` of each block, chosen at random.

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
