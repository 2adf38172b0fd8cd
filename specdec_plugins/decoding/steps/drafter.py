"""The drafter's decoder: states of a block's slots after every row's prefix, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.decoding.batch import Prefixes
from specdec_plugins.decoding.kernels import Bools, Ints, indices, to_device
from specdec_plugins.decoding.steps.cache import fill_mask
from specdec_plugins.decoding.steps.encoder import CachedModel, example_of, frozen_encoder
from specdec_plugins.engines.compiling import compiled
from specdec_plugins.engines.engine import Engine
from specdec_plugins.engines.step import CachedStep, Results
from specdec_plugins.host.fairseq_types import EncoderOut, NetInput
from specdec_plugins.models.attention import Attend
from specdec_plugins.models.drafter import Drafter
from specdec_plugins.models.drafter_decoder import Slots
from specdec_plugins.models.lattice import SlotScores
from specdec_plugins.models.rows import select_rows


class DrafterStep(CachedStep):
    """States and scores of a block's slots after new prefix tokens."""

    transient = 1
    by_layer = (0, 7)
    #: Channels of the verifier's states that it reads.
    channels = 0

    def __init__(self, model: Drafter) -> None:
        super().__init__()
        self.decoder = model.decoder
        # Maybe the verifier's: an attribute here, so that engines find its weights.
        self.tables = model.decoder.tables
        self._read = None
        with torch.no_grad():
            self.layers = self.decoder.runners(frozen=True)
            self.score = self.decoder.slot_scorer()
            self.lookups = [
                "tables.embed_tokens.weight",
                *(f"score.{name}" for name in self.score.lookups),
            ]
            self.projections = [x for layer in self.layers for x in layer.projections]
            self.projections += self.score.projections
            if model.uses_verifier_features:
                self._read = self.decoder.feature_reader()
                self.projections.append(self._read)
                width = int(model.verifier.decoder.output_embed_dim)
                self.channels = (1 + len(model.feature_layers)) * width

    def run(self, attends: Sequence[Attend], *inputs: Any) -> Results:
        """Return states ``(rows, block, channels)`` of the block's slots, and their scores.

        ``inputs``: those of :class:`Slots`, with the verifier's states for features; ``(rows,
        block)`` the slots of the block, and ``(rows,)`` the token before each block.
        """
        *new, block, last = inputs
        slots = Slots(*new)
        if slots.memory_mask is not None:
            mask = slots.memory_mask.expand(-1, -1, slots.tokens.size(1), -1)
            slots = slots._replace(memory_mask=mask)
        if slots.features is not None and self._read is not None:
            slots = slots._replace(features=self._read(slots.features))
        x = self.decoder.run(self.decoder.embed(slots), slots, list(zip(self.layers, attends)))
        x = x.gather(1, block[..., None].expand(-1, -1, x.size(-1)))
        return (x, *self.score(x, last))

    def example_run(self, rows: int, tokens: int, others: int) -> tuple[Tensor | None, ...]:
        ids, positions, *source = example_of(self.layers, rows, tokens, others)
        copies = features = None
        if self.decoder.copies_source:
            copies = torch.zeros(rows, others + 2, self.decoder.channels)
        if self._read is not None:
            features = torch.zeros(rows, tokens, self.channels)
        new = ids, positions > 1, positions, self.decoder.positions(others + 2)
        block = torch.ones(rows, others - 4, dtype=torch.long)
        return *new, *source, copies, features, block, ids[:, 0]


class CachedDrafter(CachedModel):
    """A :class:`DrafterStep` with a cache of every row's prefix.

    A causal drafter caches prefixes; a bidirectional one reads the whole prefix at every step.
    """

    def __init__(self, model: Drafter, engine: Engine | None = None) -> None:
        model.eval()
        self.model = model
        self.decoder = model.decoder
        self.step = DrafterStep(model)
        super().__init__(self.step, engine, model.decoder.positions, _empty)
        self.causal = model.decoder.causal
        #: True if tensor code of fixed sizes can make its inputs.
        self.recordable = self.causal and not model.decoder.copies_source
        self.encode = None if model.encoder is None else frozen_encoder(model.encoder, self.engine)

    def start(self, net_input: NetInput, verifier_out: EncoderOut | None, capacity: int) -> None:
        """Begin a batch; ``capacity``: the largest number of tokens of a row, block included."""
        encoder_out = verifier_out
        if self.encode is not None:
            encoder_out = self.encode(net_input["src_tokens"], net_input["src_lengths"])
        assert encoder_out is not None
        # One row may have the most cached tokens, another the most new ones.
        self.begin(encoder_out, 2 * capacity)
        assert self._table is not None
        self._copies = self.decoder.copies(encoder_out, self._mask, self._table)

    def draft(self, prefixes: Prefixes, block_size: int) -> tuple[Tensor, SlotScores]:
        """Return states ``(rows, block_size, channels)`` of the slots after every prefix, and their
        scores. Slots of a row see each other, but not slots that only other rows have."""
        mask, *new, block, last = [x.to(self._device) for x in self._inputs(prefixes, block_size)]
        memory = self._memory
        rest = [self._mask, self._copies]
        rows = None
        if prefixes.rows is not None:
            rows = to_device(prefixes.rows, self._device)
            memory = memory[:, :, rows]
            rest = [x if x is None else x[rows] for x in rest]
        features = self._features(prefixes, rows, new) if self.step.channels else None
        inputs = mask, *new, self._table, memory, *rest, features, block, last
        cached = prefixes.cached
        states, *scores = self.cache.run(self._run, max(cached), inputs, rows)
        if self.causal:
            sources = indices(max(prefixes.new), self._device).expand(len(cached), -1)
            self.cache.write(sources, cached, prefixes.new, prefixes.rows)
        return states, self.step.score.read(*scores)

    def _inputs(self, prefixes: Prefixes, block_size: int) -> tuple[Tensor, ...]:
        """Return the mask, tokens, ``is_mask``, positions, block and last tokens on the host."""
        cached = prefixes.cached
        rows = len(prefixes.new)
        slots = max(prefixes.new) + block_size
        width = self.cache.reserve(max(cached), slots)
        mask, *inputs = self._empty(rows, slots, block_size, width, self._dtype)
        counts = np.array((cached, prefixes.new, prefixes.slots or [block_size] * rows))
        arrays: Any = tuple(tensor.numpy() for tensor in inputs)
        among = np.empty((rows, slots, slots), np.bool_)
        fill_inputs(arrays[:-1], counts, among, self.decoder.padding + 1, self.causal)
        arrays[-1][:] = prefixes.last
        chosen = range(rows) if prefixes.rows is None else prefixes.rows
        for tokens, row, begin, new in zip(arrays[0], chosen, cached, prefixes.new):
            tokens[:new] = prefixes.tokens[row][begin : begin + new]
        fill_mask(mask, counts[0], among, max(cached))
        return mask, *inputs

    def _features(
        self, prefixes: Prefixes, rows: Tensor | None, new: Sequence[Tensor]
    ) -> Tensor | None:
        """Return the verifier's states for new tokens; of all slots, where a sum is cheaper."""
        _, is_mask, positions = new
        if prefixes.features is None:
            if not self._whole:
                return None
            return torch.zeros(*positions.shape, self.step.channels, dtype=self._dtype)
        if rows is None:
            rows = indices(len(positions), self._device)
        if not self._whole:
            positions = positions[:, : max(prefixes.new)]
            return prefixes.features[rows[:, None], positions]
        features = prefixes.features[rows[:, None], positions]
        # Zeros: int8 products are scaled by the largest number.
        return features.masked_fill(is_mask[..., None], 0)

    def select(self, rows: list[int], width: int, sources: list[int] | None = None) -> None:
        super().select(rows, width if self.causal else 0, sources)
        if self._copies is not None:
            self._copies = select_rows(self._copies, rows)


def _empty(rows: int, slots: int, block: int, width: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return buffers for a mask, tokens, ``is_mask``, positions, block and last tokens."""
    tokens, positions = torch.empty(2, rows, slots, dtype=torch.long)
    return (
        torch.empty(rows, 1, slots, width, dtype=dtype),
        tokens,
        torch.empty(rows, slots, dtype=torch.bool),
        positions,
        tokens.new_empty(rows, block),
        tokens.new_empty(rows),
    )


def block_inputs(
    cached: Tensor, new: Tensor, index: Tensor, block_size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ``is_mask``, positions and block of a causal drafter's inputs, and ``(rows, n, n)``
    the new tokens that each sees, by tensor code.

    Args:
        cached, new: ``(rows,)`` tokens of each prefix.
        index: ``(n,)`` 0, 1, 2, …
    """
    is_mask = index >= new[:, None]
    last = (new + (block_size - 1))[:, None]
    seen = torch.where(is_mask, last, index)
    block = new[:, None] + index[:block_size]
    return is_mask, cached[:, None] + index, block, index <= seen[..., None]


@compiled
def fill_inputs(
    inputs: tuple[Ints, Bools, Ints, Ints],
    counts: Ints,
    among: Bools,
    masked: int,
    causal: bool,
) -> None:
    """Fill in a step's inputs, but for the tokens of prefixes and before blocks.

    Args:
        inputs: ``(rows, slots)`` tokens, True for masks, and positions; ``(rows, block)`` slots of
            the block.
        counts: ``(3, rows)`` each row's cached and new tokens, and slots of its block.
        among: ``(rows, slots, slots)`` True for the new tokens that each sees.
        masked: a token for masks.
        causal: True if tokens of a prefix do not see later ones.
    """
    tokens, is_mask, positions, block = inputs
    slots = tokens.shape[1]
    tokens[:] = masked
    for i in range(counts.shape[1]):
        cached = counts[0, i]
        new = counts[1, i]
        count = counts[2, i]
        for slot in range(block.shape[1]):
            block[i, slot] = new + slot
        for slot in range(slots):
            positions[i, slot] = cached + slot
            is_mask[i, slot] = slot >= new
            seen = slot + 1 if causal and slot < new else new + count
            for other in range(slots):
                among[i, slot, other] = other < seen
