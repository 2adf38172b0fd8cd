"""The prefixes of drafts, and the drafter's inputs made of them. No fairseq in here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from specdec_plugins.decoding.kernels import Bools, Floating, Ints, compiled


@dataclass(frozen=True)
class Prefixes:
    """The prefixes that blocks are to follow, one for each row."""

    tokens: Sequence[Sequence[int]]
    """The prefixes of all rows of the batch; there may be other tokens after them."""
    new: list[int]
    """The number of last tokens of each prefix that the drafter has not cached; all of them if it
    is bidirectional."""
    lengths: list[int]
    """Prefix lengths."""
    last: Sequence[int]
    """The token before each block."""
    features: Tensor | None
    """``(rows, n, channels)`` the verifier's states for the prefixes of all rows of the batch, for
    drafters that read them."""
    slots: list[int] | None = None
    """Slots of each row's block, at least 1; None: all."""
    rows: list[int] | None = None
    """The rows of the batch; None: all."""

    @property
    def cached(self) -> list[int]:
        """The number of tokens of each prefix that the drafter has cached."""
        return [length - new for length, new in zip(self.lengths, self.new)]

    def slots_of(self, block_size: int) -> list[int]:
        """Return the slots of each row's block."""
        return [block_size] * len(self.new) if self.slots is None else self.slots


class DrafterInputs(NamedTuple):
    """Inputs of a drafter's step that depend on new tokens: its mask, then those of its ``run``."""

    mask: Tensor
    tokens: Tensor
    is_mask: Tensor
    positions: Tensor
    block: Tensor
    last: Tensor
    features: Tensor | None


def empty_inputs(
    rows: int, slots: int, block: int, width: int, read: tuple[int, int], dtype: torch.dtype
) -> DrafterInputs:
    """Return buffers of so many slots; ``read``: slots and channels of features."""
    tokens, positions = torch.zeros(2, rows, slots, dtype=torch.long)
    return DrafterInputs(
        torch.empty(rows, 1, slots, width + slots, dtype=dtype),
        tokens,
        torch.zeros(rows, slots, dtype=torch.bool),
        positions,
        torch.zeros(rows, block, dtype=torch.long),
        torch.zeros(rows, dtype=torch.long),
        torch.zeros(rows, *read, dtype=dtype),
    )


def block_inputs(
    counts: tuple[Tensor, Tensor, int], index: Tensor, block_size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ``is_mask``, positions and block of a causal drafter's inputs, and ``(rows, n, n)``
    the new tokens that each sees, by tensor code.

    Args:
        counts: ``(rows,)`` cached and new tokens of each prefix, and slots of each block.
        index: ``(n,)`` 0, 1, 2, …
    """
    cached, new, slots = counts
    is_mask, end = index >= new[:, None], (new + slots)[:, None]
    seen = torch.where(is_mask, end, index + 1)
    block = new[:, None] + index[:block_size]
    return is_mask, cached[:, None] + index, block, index < seen[..., None]


@compiled
def fill_inputs(
    inputs: tuple[Ints, Bools, Ints, Ints, Ints],
    befores: Ints,
    counts: Ints,
    among: Bools,
    about: tuple[int, bool],
) -> None:
    """Fill in a step's inputs, but for the tokens of prefixes.

    Args:
        inputs: ``tokens`` to ``last`` of :class:`DrafterInputs`, with padding.
        befores: ``(rows,)`` the token before each block.
        counts: ``(4, rows)`` each row's cached and new tokens, slots of its block, and index.
        among: ``(rows, slots, slots)`` True for the new tokens that each sees.
        about: a token for masks; True if tokens of a prefix do not see later ones.
    """
    tokens, is_mask, positions, block, last = inputs
    masked, causal = about
    slots = tokens.shape[1]
    tokens[:], is_mask[:], positions[:], block[:], last[:] = masked, False, 0, 0, 0
    for i in range(counts.shape[1]):
        cached, new, count = counts[0, i], counts[1, i], counts[2, i]
        last[i] = befores[i]
        for slot in range(block.shape[1]):
            block[i, slot] = new + slot
        for slot in range(slots):
            positions[i, slot] = cached + slot
            is_mask[i, slot] = slot >= new
            seen = slot + 1 if causal and slot < new else new + count
            for other in range(slots):
                among[i, slot, other] = other < seen


@compiled
def fill_features(features: Floating, states: Floating, counts: Ints) -> None:
    """Fill features of new tokens from ``states`` ``(rows, n, channels)`` of the whole batch."""
    features[:] = 0
    for i in range(counts.shape[1]):
        for slot in range(counts[1, i]):
            features[i, slot] = states[counts[3, i], counts[0, i] + slot]
