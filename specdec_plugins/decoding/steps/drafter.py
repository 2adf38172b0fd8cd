"""The drafter's decoder: states of a block's slots after every row's prefix, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_plugins.decoding.arrays import Bools, Floating, Ints, is_host, numbers, on_host
from specdec_plugins.decoding.compiled import compiled
from specdec_plugins.decoding.indices import indices, row_starts, told
from specdec_plugins.decoding.steps.cache import KVCache, Reused
from specdec_plugins.decoding.steps.encoder import (
    Encode,
    MemoryStep,
    all_projections,
    example_memory,
    example_tokens,
    frozen_encoder,
)
from specdec_plugins.decoding.steps.mask import fill_mask, mask_elsewhere, memory_mask
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.engine import Engine
from specdec_plugins.engines.step import CachedStep, Results
from specdec_plugins.host.fairseq_types import EncoderOut, NetInput
from specdec_plugins.models.drafter import Drafter
from specdec_plugins.models.drafter_decoder import Memory
from specdec_plugins.models.lattice import SlotScores
from specdec_plugins.models.layers import Attend, KeysValues


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

    def own(self, block_size: int) -> list[int]:
        """How many slots of a block are each row's."""
        return [block_size] * len(self.new) if self.slots is None else self.slots


class DrafterStep(CachedStep):
    """States of a block's slots after new prefix tokens, and what the slots may hold."""

    transient = 1
    memory_at = 6

    def __init__(self, model: Drafter) -> None:
        super().__init__()
        self.decoder = model.decoder
        # The verifier's, maybe: a module of the step, too, for what traces its weights.
        self.tables = model.decoder.tables
        self._read = None
        with torch.no_grad():
            self.layers = self.decoder.runners(frozen=True)
            self.score = self.decoder.slot_scorer()
            self.projections = [*all_projections(self.layers), *self.score.projections]
            self.lookups = [self.tables.embed_tokens.weight, *self.score.lookups]
            if model.uses_verifier_features:
                self._read = self.decoder.feature_reader()
                self.projections.append(self._read)
                parts = 1 + len(model.feature_layers)
                self.channels = parts * int(model.verifier.decoder.output_embed_dim)

    def run(
        self,
        attends: Sequence[Attend],
        tokens: Tensor,
        is_mask: Tensor,
        positions: Tensor,
        block: Tensor,
        last: Tensor,
        table: Tensor,
        memory: KeysValues,
        memory_mask: Tensor | None,
        copies: Tensor | None,
        features: Tensor | None,
    ) -> Results:
        """States ``(rows, block, channels)`` of the block's slots, before the output layer, and
        what the slot scorer makes of them.

        Args:
            tokens: ``(rows, slots)`` prefix tokens, and whatever where ``is_mask``.
            positions: ``(rows, slots)`` where in the target each stands.
            block: ``(rows, block)`` the slots that are the block's.
            last: ``(rows,)`` the token before each block.
            table: ``(length, channels)`` what stands for a position.
            memory, memory_mask, copies: what the drafter knows of the source.
            features: ``(rows, n, channels)`` the verifier's states for the first n slots.
        """
        known = Memory(memory, memory_mask, copies)
        if features is not None and self._read is not None:
            features = self._read(features)
        x = self.decoder.embed(tokens, is_mask, positions, known, table, features)
        x = self.decoder.run(x, positions, table, self.layers, attends, known)
        x = x.gather(1, block[..., None].expand(-1, -1, x.size(-1)))
        return (x, *self.score(x, last))

    def example(self, rows: int = 2, tokens: int = 5, others: int = 7) -> tuple[Tensor | None, ...]:
        """See the base class."""
        ids, positions = example_tokens(rows, tokens)
        copies, features = None, None
        if self.decoder.copies_source:
            copies = torch.zeros(rows, others + 2, self.decoder.channels)
        if self._read is not None:
            features = torch.zeros(rows, tokens, self.channels)
        return (
            ids,
            positions > 1,
            positions,
            torch.ones(rows, others - 4, dtype=torch.long),
            ids[:, 0],
            self.decoder.positions(others + 2),
            *example_memory(self.layers, rows, others),
            copies,
            features,
        )


class CachedDrafter:
    """A :class:`DrafterStep` over a batch in which every row makes its own progress.

    A causal drafter keeps its prefix states; a bidirectional one is given the whole prefix anew at
    every step. Built once for a model; :meth:`start` begins a batch.
    """

    def __init__(self, model: Drafter, engine: Engine | None = None) -> None:
        """``engine``: what runs the steps; None is PyTorch as it is."""
        self.engine = engine = engine or EagerEngine()
        model.eval()
        self.model = model
        self.decoder = model.decoder
        self.causal = model.decoder.causal
        self.reads_features = model.uses_verifier_features
        self.step = DrafterStep(model)
        self._run = engine.prepare(self.step)
        self._read_source = engine.prepare(MemoryStep(self.step.layers))
        self._encode: Encode | None = None
        with torch.no_grad():
            if model.encoder is not None:
                self._encode = frozen_encoder(model.encoder, engine)
        self._table: Tensor | None = None
        self._sizes = engine.sizes
        self._cache = KVCache(self.step.layers, engine.sizes)
        self._new = _new if engine.sizes.exact else Reused(_new)

    def start(self, net_input: NetInput, verifier_out: EncoderOut | None, capacity: int) -> None:
        """Begin a batch: read the source with the drafter's own encoder, or take what the
        verifier's made of it.

        ``capacity``: of a row, prefix and block together.
        """
        encoder_out = verifier_out
        if self._encode is not None:
            encoder_out = self._encode(net_input["src_tokens"], net_input["src_lengths"])
        assert encoder_out is not None
        states = encoder_out["encoder_out"][0]
        self._cache.begin(states)
        # Where rows differ in what is cached and in what is new, both may be longest at once.
        self._dtype, count, table = states.dtype, self._sizes.room(2 * capacity), self._table
        if table is None or len(table) < count or table.dtype != states.dtype:
            self._table = table = self.decoder.positions(count)
        (keys_values,) = self._read_source(states)
        mask = memory_mask(encoder_out, states, self._sizes.exact)
        copies = self.decoder.copies(encoder_out, mask, table)
        self._memory = Memory(keys_values, mask, copies)

    def draft(self, prefixes: Prefixes, block_size: int) -> tuple[Tensor, SlotScores]:
        """``(rows, block_size, channels)``: the states of slots for positions p … of every row, and
        what the slots may hold.

        The slots of a row see each other, but not those that are in the batch for other rows only.
        """
        count, device = len(prefixes.new), prefixes.tokens.device
        memory, chosen, rows = self._memory, None, self._cache.rows
        if prefixes.rows is not None:
            rows = self._sizes.rows(count)
            # What is padding is the first row of all once more.
            chosen = told(prefixes.rows + [0] * (rows - count), device)
            memory = memory.of(chosen)
        if is_host(device):
            inputs = self._inputs(prefixes, block_size, rows)
        else:
            inputs = self._inputs_elsewhere(prefixes, block_size, chosen)
        new, longest = inputs.new, max(prefixes.cached)
        given = new.tokens, new.is_mask, new.positions, new.block, new.last
        rest = self._table, memory.keys_values, memory.mask, memory.copies, inputs.features
        results = self._cache.run(self._run, longest, inputs.mask, *given, *rest, rows=chosen)
        if self.causal:
            window = indices(max(prefixes.new), device).expand(count, -1)
            self._cache.write(window, prefixes.cached, prefixes.new, prefixes.rows)
        if count < rows:
            results = tuple(result[:count] for result in results)
        states, *scores = results
        return states, self.step.score.read(*scores)

    def _inputs(self, prefixes: Prefixes, block_size: int, rows: int) -> _Inputs:
        """What the step is handed, with padding."""
        slots = self._sizes.block(max(prefixes.new), block_size)
        width = self._cache.width(max(prefixes.cached))
        read, channels = 0, 0
        if self.reads_features:
            # To an engine a sum is cheaper than to write to a part.
            read = max(prefixes.new) if self._sizes.exact else slots
            channels = self.step.channels
        inputs = self._new(rows, slots, block_size, width, (read, channels), self._dtype)
        own = list(range(len(prefixes.new))) if prefixes.rows is None else prefixes.rows
        counts = np.array((prefixes.cached, prefixes.new, prefixes.own(block_size), own))
        given: Any = tuple(tensor.numpy() for tensor in inputs.new)
        prefix = on_host(prefixes.tokens), on_host(prefixes.last)
        among = np.empty((len(own), slots, slots), np.bool_)
        _fill(given, prefix, counts, among, (self.decoder.padding + 1, self.causal))
        fill_mask(inputs.mask, counts[0], among)
        if inputs.features is not None and prefixes.features is not None:
            states = prefixes.features.contiguous()
            _fill_features(numbers(inputs.features), numbers(states), counts)
        return inputs if read else inputs._replace(features=None)

    def _inputs_elsewhere(
        self, prefixes: Prefixes, block_size: int, chosen: Tensor | None
    ) -> _Inputs:
        """The same on a device, without padding."""
        cached, device, window = prefixes.cached, prefixes.tokens.device, max(prefixes.new)
        begins, new, own = told([cached, prefixes.new, prefixes.own(block_size)], device).unbind()
        index = indices(window + block_size, device)
        positions = begins[:, None] + index
        tokens, features = _new_tokens(prefixes, positions[:, :window], chosen)
        # Right after its own new tokens comes a row's block; what follows that is never read.
        tokens = F.pad(tokens, (0, block_size), value=self.decoder.padding + 1)
        is_mask, last = index >= new[:, None], (new + own)[:, None]
        seen = torch.where(is_mask, last, index + 1) if self.causal else last
        among = index < seen[..., None]
        mask = mask_elsewhere(begins, self._cache.width(max(cached)), among, self._dtype)
        block = new[:, None] + indices(block_size, device)
        made = _New(tokens, is_mask, positions, block, prefixes.last)
        return _Inputs(mask, made, features)

    def keep(self, rows: list[int], width: int) -> None:
        """Go on with ``rows`` only, of which at most ``width`` positions are cached."""
        count = self._cache.keep(rows, width if self.causal else 0)
        self._memory = self._memory.keep(rows, count)


class _New(NamedTuple):
    """New tokens, as :class:`DrafterStep` has them."""

    tokens: Tensor
    is_mask: Tensor
    positions: Tensor
    block: Tensor
    last: Tensor


class _Inputs(NamedTuple):
    """What a step is handed of new tokens."""

    mask: Tensor
    new: _New
    features: Tensor | None
    """``(rows, n, channels)`` of the first n slots; None for a drafter that reads none."""


def _new_tokens(
    prefixes: Prefixes, positions: Tensor, chosen: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """What prefixes have at ``positions`` ``(rows, window)``, and the verifier's states for it.

    ``chosen``: ``(rows,)`` which rows of the batch they are; None: all.
    """
    tokens, features = prefixes.tokens, prefixes.features
    if chosen is None and not any(prefixes.cached):
        window = positions.size(1)
        return tokens[:, :window], None if features is None else features[:, :window]
    found = (tokens if chosen is None else tokens[chosen]).gather(1, positions)
    if features is None:
        return found, None
    # As places within all rows one after another, which are quicker to copy from.
    starts = row_starts(*features.shape[:2], features.device)
    flat = ((starts if chosen is None else starts[chosen]) + positions).flatten()
    states = features.flatten(0, 1).index_select(0, flat)
    return found, states.view(*positions.shape, features.size(-1))


def _new(
    rows: int, slots: int, block: int, width: int, read: tuple[int, int], dtype: torch.dtype
) -> _Inputs:
    """Of so many slots, the last ``block`` of which are the block's; ``read``: of how many slots
    there are features, and of how many channels."""
    tokens, positions = torch.zeros(2, rows, slots, dtype=torch.long)
    new = _New(
        tokens,
        torch.zeros(rows, slots, dtype=torch.bool),
        positions,
        torch.zeros(rows, block, dtype=torch.long),
        torch.zeros(rows, dtype=torch.long),
    )
    mask = torch.empty(rows, 1, slots, width + slots, dtype=dtype)
    return _Inputs(mask, new, torch.zeros(rows, *read, dtype=dtype))


@compiled
def _fill(
    inputs: tuple[Ints, Bools, Ints, Ints, Ints],
    prefix: tuple[Ints, Ints],
    counts: Ints,
    among: Bools,
    about: tuple[int, bool],
) -> None:
    """
    Args:
        inputs: of a step: those of :class:`_New`, with padding.
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
def _fill_features(features: Floating, states: Floating, counts: Ints) -> None:
    """``features``: of new tokens, with padding; ``states``: ``(rows, n, channels)`` of all rows of
    the batch; ``counts``: as above."""
    features[:] = 0
    for i in range(counts.shape[1]):
        for slot in range(counts[1, i]):
            features[i, slot] = states[counts[3, i], counts[0, i] + slot]
