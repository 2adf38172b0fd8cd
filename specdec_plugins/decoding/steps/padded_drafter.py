"""The drafter's steps for engines that want few sizes."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.decoding.arrays import Bools, Floating, Ints, on_host
from specdec_plugins.decoding.compiled import compiled
from specdec_plugins.decoding.steps.drafter import CachedDrafter, Prefixes
from specdec_plugins.decoding.steps.padded_cache import PaddedKVCache, Reused
from specdec_plugins.decoding.steps.padded_verifier import some_mask
from specdec_plugins.engines.engine import Engine
from specdec_plugins.engines.sizes import PaddedSizes
from specdec_plugins.host.fairseq_types import EncoderOut
from specdec_plugins.models.drafter import Drafter
from specdec_plugins.models.lattice import SlotScores
from specdec_plugins.models.layers import lowest


class Inputs(NamedTuple):
    """What a step is handed of new tokens."""

    mask: Tensor
    """``(rows, 1, slots, width + slots)``."""
    tokens: Tensor
    """``(rows, slots)``, as the rest of them: as of :class:`DrafterStep`."""
    is_mask: Tensor
    positions: Tensor
    block: Tensor
    last: Tensor
    features: Tensor
    """``(rows, slots, channels)``; without channels for a drafter that reads none."""


class PaddedDrafter(CachedDrafter):
    """Steps are handed more rows, tokens and positions than there are, and a mask that says so: in
    tensors that compiled code fills anew."""

    def __init__(self, model: Drafter, engine: Engine, sizes: PaddedSizes) -> None:
        """See the base class; ``sizes``: the engine's."""
        super().__init__(model, engine)
        self._sizes = sizes
        self._lowest = lowest(engine.dtype)
        self._past = PaddedKVCache(self.step.layers, engine.dtype, sizes)
        channels = self.step.channels if self.reads_features else 0
        self._inputs = Reused(partial(_inputs, engine.dtype, channels))

    def _begin(self, states: Tensor, capacity: int) -> None:
        self._past.begin(states.size(1))
        self._tell_positions(self._sizes.cached(capacity), states.dtype)

    def _source_mask(self, encoder_out: EncoderOut, states: Tensor) -> Tensor:
        return some_mask(encoder_out, states)

    def draft(self, prefixes: Prefixes, block_size: int) -> tuple[Tensor, SlotScores]:
        """See the base class."""
        count, chosen, memory = len(prefixes.new), None, self._memory
        most = self._past.rows
        if prefixes.rows is not None:
            most = self._sizes.rows(count)
            # What is padding is the first row of all once more.
            chosen = torch.tensor(prefixes.rows + [0] * (most - count))
            memory = memory.of(chosen)
        slots = self._sizes.block(max(prefixes.new), block_size)
        inputs = self._inputs(most, slots, block_size, self._past.width)
        rows = list(range(count)) if prefixes.rows is None else prefixes.rows
        features = prefixes.features
        if features is None:
            features = inputs.features[:, :0]
        filled: Any = tuple(tensor.numpy() for tensor in inputs)
        _fill(
            filled,
            (on_host(prefixes.tokens), on_host(prefixes.last), on_host(features)),
            np.array((prefixes.cached, prefixes.new, prefixes.own(block_size), rows)),
            self.decoder.padding + 1,
            self.causal,
            self._lowest,
        )
        mask, *others, new_features = inputs
        states = new_features if self.reads_features else None
        rest = self._table, memory.keys_values, memory.mask, memory.copies, states
        results = self._past.run(self._run, mask, *others, *rest, rows=chosen)
        if self.causal:
            sources = np.tile(np.arange(max(prefixes.new)), (count, 1))
            self._past.write(sources, prefixes.cached, prefixes.new, prefixes.rows)
        if count < most:
            results = tuple(result[:count] for result in results)
        states, *scores = results
        return states, self.step.score.read(*scores)

    def _keep(self, rows: list[int], width: int) -> int:
        return self._past.keep(rows)


def _inputs(
    dtype: torch.dtype, channels: int, rows: int, slots: int, block: int, width: int
) -> Inputs:
    """Of so many slots, the last ``block`` of which are the block's."""
    tokens, positions = torch.zeros(2, rows, slots, dtype=torch.long)
    return Inputs(
        torch.zeros(rows, 1, slots, width + slots, dtype=dtype),
        tokens,
        torch.zeros(rows, slots, dtype=torch.bool),
        positions,
        torch.zeros(rows, block, dtype=torch.long),
        torch.zeros(rows, dtype=torch.long),
        torch.zeros(rows, slots, channels, dtype=dtype),
    )


@compiled
def _fill(
    inputs: tuple[Floating, Ints, Bools, Ints, Ints, Ints, Floating],
    given: tuple[Ints, Ints, Floating],
    counts: Ints,
    masked: int,
    causal: bool,
    lowest: float,
) -> None:
    """What is padding sees all, and is seen by no other.

    Args:
        inputs: of a step: those of :class:`Inputs`.
        given: prefixes ``(rows, n)`` of all rows of the batch; of each row that there is to be a
            block for the token before it; and features ``(rows, n, channels)`` of all rows.
        counts: ``(4, rows)`` how many tokens of its prefix are cached, how many are new, how many
            slots its block is to have, and which row of the batch it is.
        masked: a token that stands for none.
        causal: tokens of a prefix do not see what comes after them.
        lowest: in masks, what is not seen.
    """
    mask, tokens, is_mask, positions, block, last, features = inputs
    prefixes, befores, states = given
    slots = tokens.shape[1]
    width = mask.shape[3] - slots
    mask[:] = 0
    tokens[:], is_mask[:], positions[:], block[:], last[:] = masked, False, 0, 0, 0
    features[:] = 0
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
                if states.shape[1] > 0:
                    features[i, slot] = states[row, cached + slot]
            seen = slot + 1 if causal and slot < new else new + own
            line = mask[i, 0, slot]
            line[cached:width] = lowest
            line[width + seen :] = lowest
