"""What a drafter goes on from, and its inputs on the host and off it. No fairseq in here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from specdec_plugins.decoding.kernels import Bools, Floating, Ints, compiled, indices


@dataclass(frozen=True)
class Prefixes:
    """What a drafter is to go on from, a row each."""

    tokens: Tensor
    """``(rows, n)`` of all rows of the batch: prefixes, then whatever."""
    new: list[int]
    """How many tokens of each prefix, its last ones, the drafter has not cached; for one that is
    bidirectional all of them."""
    lengths: list[int]
    """Prefix lengths p."""
    last: Tensor
    """``(rows,)`` the token before each block: the prefix's last, EOS before the first."""
    features: Tensor | None
    """``(rows, n, channels)`` of all rows of the batch: the verifier's states for prefixes, then
    whatever, for drafters that read them; None where there are none."""
    slots: list[int] | None = None
    """How many slots each row is to have of the block, at least 1; None: all."""
    rows: list[int] | None = None
    """Which rows of the batch these are; None: all."""

    @property
    def cached(self) -> list[int]:
        """How many tokens of each prefix the drafter has cached."""
        return [length - new for length, new in zip(self.lengths, self.new)]

    def slots_of(self, block_size: int) -> list[int]:
        """Return how many slots of a block are each row's."""
        return [block_size] * len(self.new) if self.slots is None else self.slots


class NewTokens(NamedTuple):
    """New tokens, as a drafter's step has them."""

    tokens: Tensor
    is_mask: Tensor
    positions: Tensor
    block: Tensor
    last: Tensor


class DrafterInputs(NamedTuple):
    """What a step is handed of new tokens."""

    mask: Tensor
    new: NewTokens
    features: Tensor | None
    """``(rows, n, channels)`` of the first n slots; None for a drafter that reads none."""


def new_tokens(
    prefixes: Prefixes, positions: Tensor, chosen: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Return the tokens of prefixes at ``positions`` ``(rows, window)``, and the verifier's states.

    ``chosen``: ``(rows,)`` rows of the batch; None: all.
    """
    tokens, features = prefixes.tokens, prefixes.features
    row = (indices(len(tokens), tokens.device) if chosen is None else chosen)[:, None]
    return tokens[row, positions], None if features is None else features[row, positions]


def block_inputs(
    counts: tuple[Tensor, Tensor, Tensor | int],
    index: Tensor,
    block_size: int,
    causal: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ``is_mask``, positions and block of :class:`NewTokens`, and ``(rows, n, n)`` the new
    tokens that each sees.

    Args:
        counts: ``(rows,)`` each: tokens of each prefix that are cached, and that are new; and
            slots of each row's block, which follows them.
        index: ``(n,)`` 0, 1, 2, …
        causal: tokens of a prefix do not see those after them.
    """
    cached, new, slots = counts
    is_mask, end = index >= new[:, None], (new + slots)[:, None]
    seen = torch.where(is_mask, end, index + 1) if causal else end
    block = new[:, None] + index[:block_size]
    return is_mask, cached[:, None] + index, block, index < seen[..., None]


def empty_inputs(
    rows: int, slots: int, block: int, width: int, read: tuple[int, int], dtype: torch.dtype
) -> DrafterInputs:
    """Inputs of so many slots, the last ``block`` of which are the block's; ``read``: of how many
    slots there are features, and of how many channels."""
    tokens, positions = torch.zeros(2, rows, slots, dtype=torch.long)
    new = NewTokens(
        tokens,
        torch.zeros(rows, slots, dtype=torch.bool),
        positions,
        torch.zeros(rows, block, dtype=torch.long),
        torch.zeros(rows, dtype=torch.long),
    )
    mask = torch.empty(rows, 1, slots, width + slots, dtype=dtype)
    return DrafterInputs(mask, new, torch.zeros(rows, *read, dtype=dtype))


@compiled
def fill_inputs(
    inputs: tuple[Ints, Bools, Ints, Ints, Ints],
    prefix: tuple[Ints, Ints],
    counts: Ints,
    among: Bools,
    about: tuple[int, bool],
) -> None:
    """
    Args:
        inputs: of a step: those of :class:`NewTokens`, with padding.
        prefix: prefixes ``(rows, n)`` of all rows of the batch; and of each row that there is to be
            a block for the token before it.
        counts: ``(4, rows)`` how many tokens of its prefix are cached, how many are new, how many
            slots its block is to have, and which row of the batch it is.
        among: ``(rows, slots, slots)`` which of the new tokens each sees.
        about: a token that stands for none; whether tokens of a prefix do not see what comes after
            them.
    """
    tokens, is_mask, positions, block, last = inputs
    prefixes, befores = prefix
    masked, causal = about
    slots = tokens.shape[1]
    tokens[:], is_mask[:], positions[:], block[:], last[:] = masked, False, 0, 0, 0
    for i in range(counts.shape[1]):
        cached, new, own, row = counts[0, i], counts[1, i], counts[2, i], counts[3, i]
        last[i] = befores[i]
        for slot in range(block.shape[1]):
            block[i, slot] = new + slot
        for slot in range(slots):
            positions[i, slot] = cached + slot
            is_mask[i, slot] = slot >= new
            if slot < new:
                tokens[i, slot] = prefixes[row, cached + slot]
            seen = slot + 1 if causal and slot < new else new + own
            for other in range(slots):
                among[i, slot, other] = other < seen


@compiled
def fill_features(features: Floating, states: Floating, counts: Ints) -> None:
    """``features``: of new tokens, with padding; ``states``: ``(rows, n, channels)`` of all rows of
    the batch; ``counts``: as above."""
    features[:] = 0
    for i in range(counts.shape[1]):
        for slot in range(counts[1, i]):
            features[i, slot] = states[counts[3, i], counts[0, i] + slot]
