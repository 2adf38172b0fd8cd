"""The verifier's steps for engines that want few sizes."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import numpy as np
import torch
from fairseq.models.transformer import TransformerModelBase
from torch import Tensor

from specdec_plugins.decoding.acceptance import Accepted
from specdec_plugins.decoding.arrays import Bools, Floating, Ints, on_host
from specdec_plugins.decoding.compiled import compiled
from specdec_plugins.decoding.drafts import Draft
from specdec_plugins.decoding.steps.padded_cache import PaddedKVCache, Reused
from specdec_plugins.decoding.steps.verifier import CachedVerifier, Scored
from specdec_plugins.engines.engine import Engine
from specdec_plugins.engines.sizes import PaddedSizes
from specdec_plugins.host.fairseq_types import EncoderOut
from specdec_plugins.models.layers import lowest, source_mask


class PaddedVerifier(CachedVerifier):
    """Steps are handed more rows, tokens and positions than there are, and a mask that says so: in
    tensors that compiled code fills anew."""

    def __init__(
        self,
        model: TransformerModelBase,
        padding: int,
        engine: Engine,
        feature_layers: Collection[int],
        sizes: PaddedSizes,
    ) -> None:
        """See the base class; ``sizes``: the engine's."""
        super().__init__(model, padding, engine, feature_layers)
        self._sizes = sizes
        self._lowest = lowest(engine.dtype)
        self._past = PaddedKVCache(self.step.layers, engine.dtype, sizes)
        self._inputs = Reused(partial(_inputs, engine.dtype))

    def _source_mask(self, encoder_out: EncoderOut, states: Tensor) -> Tensor:
        return some_mask(encoder_out, states)

    def _begin(self, states: Tensor, capacity: int) -> None:
        self._past.begin(states.size(1))
        self._tell_positions(self._sizes.cached(capacity), states.dtype)

    def score(self, last: Tensor, draft: Draft, lengths: list[int]) -> Scored:
        rows, new = len(lengths), draft.tokens.size(1) + 1
        slots = self._sizes.slots(new)
        mask, tokens, positions = self._inputs(self._past.rows, slots, self._past.width)
        _fill(
            (mask.numpy(), tokens.numpy(), positions.numpy()),
            (on_host(last), on_host(draft.tokens), np.array(lengths)),
            on_host(draft.depths).reshape(-1, new),
            on_host(draft.ancestors).reshape(-1, new, new),
            self._lowest,
        )
        given = tokens, positions, self._table, self._memory, self._memory_mask
        results = self._past.run(self._run, mask, *given)
        if (rows, new) != (self._past.rows, slots):
            results = tuple(result[:rows, :new] for result in results)
        return Scored(*results)

    def commit(self, accepted: Accepted, lengths: list[int]) -> None:
        self._past.write(accepted.sources.numpy(), lengths, accepted.on_host[0])

    def _keep(self, rows: list[int], width: int) -> int:
        return self._past.keep(rows)


def _inputs(dtype: torch.dtype, rows: int, slots: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """The mask of new tokens, they, and their positions."""
    tokens, positions = torch.zeros(2, rows, slots, dtype=torch.long)
    return torch.zeros(rows, 1, slots, width + slots, dtype=dtype), tokens, positions


def some_mask(encoder_out: EncoderOut, states: Tensor) -> Tensor:
    """What to add to the scores of cross-attention to the encoder's ``states``: zeros, if need
    be."""
    mask = source_mask(encoder_out, states.dtype)
    return states.new_zeros(states.size(1), 1, 1, len(states)) if mask is None else mask


@compiled
def _fill(
    inputs: tuple[Floating, Ints, Ints],
    new: tuple[Ints, Ints, Ints],
    depths: Ints,
    ancestors: Bools,
    lowest: float,
) -> None:
    """What is padding sees all, and is seen by no other.

    Args:
        inputs: of a step, with padding: the mask ``(rows, 1, slots, width + slots)``, tokens
            ``(rows, slots)`` and their positions.
        new: of each row the last committed token, its drafted ones ``(rows, slots)``, and how many
            are committed, which are as many as are cached.
        depths: ``(rows, slots)``, or ``(1, slots)`` of all rows, as of a draft.
        ancestors: ``(rows, slots, slots)``, or ``(1, slots, slots)``, likewise.
        lowest: in masks, what is not seen.
    """
    mask, tokens, positions = inputs
    last, drafted, lengths = new
    slots, count = tokens.shape[1], drafted.shape[1] + 1
    width = mask.shape[3] - slots
    mask[:] = 0
    tokens[:], positions[:] = 0, 0
    for row in range(len(lengths)):
        depth = depths[row if len(depths) > 1 else 0]
        before = ancestors[row if len(ancestors) > 1 else 0]
        for slot in range(count):
            tokens[row, slot] = last[row] if slot == 0 else drafted[row, slot - 1]
            positions[row, slot] = lengths[row] + depth[slot]
            line = mask[row, 0, slot]
            line[lengths[row] : width] = lowest
            line[width + count :] = lowest
            for other in range(count):
                if not before[slot, other]:
                    line[width + other] = lowest
