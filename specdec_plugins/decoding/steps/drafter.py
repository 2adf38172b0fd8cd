"""The drafter's decoder: states of a block's slots after every row's prefix, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.decoding.batch import Prefixes
from specdec_plugins.decoding.kernels import (
    Bools,
    Floating,
    Ints,
    compiled,
    indices,
    is_host,
    numbers,
    to_device,
)
from specdec_plugins.decoding.steps.cache import Reused, fill_mask
from specdec_plugins.decoding.steps.encoder import (
    CachedModel,
    Encode,
    example_memory,
    example_tokens,
    frozen_encoder,
)
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.engine import Engine
from specdec_plugins.engines.step import CachedStep, Results
from specdec_plugins.host.fairseq_types import EncoderOut, NetInput
from specdec_plugins.models.attention import Attend
from specdec_plugins.models.drafter import Drafter
from specdec_plugins.models.drafter_decoder import Memory
from specdec_plugins.models.lattice import SlotScores
from specdec_plugins.models.layers import KeysValues


class DrafterStep(CachedStep):
    """States and scores of a block's slots after new prefix tokens."""

    transient = 1
    memory_at = 6
    channels = 0
    """Channels of the verifier's states that it reads."""

    def __init__(self, model: Drafter) -> None:
        super().__init__()
        self.decoder = model.decoder
        # Maybe the verifier's: an attribute here, so that engines find its weights.
        self.tables = model.decoder.tables
        self._read = None
        with torch.no_grad():
            self.layers = self.decoder.runners(frozen=True)
            self.score = self.decoder.slot_scorer()
            self.projections = [x for layer in self.layers for x in layer.projections]
            self.projections += self.score.projections
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
        """Return states ``(rows, block, channels)`` of the block's slots, and their scores.

        Args:
            tokens: ``(rows, slots)`` prefix tokens; anything where ``is_mask``.
            positions: ``(rows, slots)`` in the target.
            block: ``(rows, block)`` the slots of the block.
            last: ``(rows,)`` the token before each block.
            table: embeddings of positions.
            memory, memory_mask, copies: see :class:`Memory`.
            features: ``(rows, n, channels)`` the verifier's states for the first n slots.
        """
        if memory_mask is not None:
            memory_mask = memory_mask.expand(-1, -1, tokens.size(1), -1)
        known = Memory(memory, memory_mask, copies)
        if features is not None and self._read is not None:
            features = self._read(features)
        x = self.decoder.embed(tokens, is_mask, positions, known, table, features)
        layers = list(zip(self.layers, attends))
        x = self.decoder.run(x, positions, table, layers, known)
        x = x.gather(1, block[..., None].expand(-1, -1, x.size(-1)))
        return (x, *self.score(x, last))

    def example(self, rows: int = 2, tokens: int = 5, others: int = 7) -> tuple[Tensor | None, ...]:
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


class CachedDrafter(CachedModel):
    """A :class:`DrafterStep` with a cache of every row's prefix.

    A causal drafter caches prefixes; a bidirectional one reads the whole prefix at every step.
    """

    def __init__(self, model: Drafter, engine: Engine | None = None) -> None:
        self.engine = engine = engine or EagerEngine()
        model.eval()
        self.model, self.decoder, self.step = model, model.decoder, DrafterStep(model)
        super().__init__(self.step, engine, model.decoder.positions)
        self.causal = model.decoder.causal
        self.recordable = self.causal and not model.decoder.copies_source
        """True if tensor code of fixed sizes can make its inputs."""
        self.reads_features = model.uses_verifier_features
        self.encode: Encode | None = None
        with torch.no_grad():
            if model.encoder is not None:
                self.encode = frozen_encoder(model.encoder, engine)
        self._new = empty_inputs if engine.in_place else Reused(empty_inputs)

    def start(self, net_input: NetInput, verifier_out: EncoderOut | None, capacity: int) -> None:
        """Begin a batch: run the drafter's encoder, if it has one, else read the verifier's.

        ``capacity``: the largest number of tokens of a row, prefix and block together.
        """
        encoder_out = verifier_out
        if self.encode is not None:
            encoder_out = self.encode(net_input["src_tokens"], net_input["src_lengths"])
        assert encoder_out is not None
        # One row may have the most cached tokens, another the most new ones.
        self._begin(encoder_out, 2 * capacity)
        assert self._table is not None
        self._memory.copies = self.decoder.copies(encoder_out, self._memory.mask, self._table)

    def draft(self, prefixes: Prefixes, block_size: int) -> tuple[Tensor, SlotScores]:
        """Return states ``(rows, block_size, channels)`` of the slots after every prefix, and their
        scores. Slots of a row see each other, but not slots that only other rows have."""
        device, longest, memory, chosen = self._device, max(prefixes.cached), self._memory, None
        if prefixes.rows is not None:
            chosen = to_device(prefixes.rows, device)
            memory = memory.of(chosen)
        inputs = self._inputs(prefixes, block_size)
        if not is_host(device):
            inputs = DrafterInputs._make(x if x is None else x.to(device) for x in inputs)
        mask, *new, features = inputs
        rest = self._table, memory.keys_values, memory.mask, memory.copies, features
        states, *scores = self._cache.run(self._run, longest, mask, *new, *rest, rows=chosen)
        if self.causal:
            window = indices(max(prefixes.new), device).expand(len(prefixes.new), -1)
            self._cache.write(window, prefixes.cached, prefixes.new, prefixes.rows)
        return states, self.step.score.read(*scores)

    def _inputs(self, prefixes: Prefixes, block_size: int) -> DrafterInputs:
        """Return the step's inputs on the host; features where they are."""
        window, cached, padding = max(prefixes.new), prefixes.cached, self.decoder.padding + 1
        rows, slots, width = len(cached), window + block_size, self._cache.width(max(cached))
        # For an engine a sum is cheaper than writing to a part.
        read = (window if self._in_place else slots) * self.reads_features
        inputs = self._new(rows, slots, block_size, width, (read, self.step.channels), self._dtype)
        chosen = list(range(len(cached))) if prefixes.rows is None else prefixes.rows
        blocks = prefixes.slots or [block_size] * len(chosen)
        counts = np.array((cached, prefixes.new, blocks, chosen))
        arrays: Any = tuple(tensor.numpy() for tensor in inputs[1:-1])
        among = np.empty((len(chosen), slots, slots), np.bool_)
        fill_inputs(arrays, np.array(prefixes.last), counts, among, (padding, self.causal))
        for tokens, row, begin, new in zip(arrays[0], chosen, cached, prefixes.new):
            tokens[:new] = prefixes.tokens[row][begin : begin + new]
        fill_mask(inputs.mask, counts[0], among)
        states = prefixes.features
        if states is None or inputs.features is None or not read:
            return inputs if read else inputs._replace(features=None)
        if is_host(states.device):
            fill_features(numbers(inputs.features), numbers(states.contiguous()), counts)
            return inputs
        index = to_device(chosen, states.device)[:, None]
        positions = inputs.positions[:, :window].to(states.device)
        return inputs._replace(features=states[index, positions])

    def keep(self, rows: list[int], width: int) -> None:
        super().keep(rows, width if self.causal else 0)


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
        inputs: ``tokens`` to ``last`` of :class:`DrafterInputs`.
        befores: ``(rows,)`` the token before each block.
        counts: ``(4, rows)`` each row's cached and new tokens, slots of its block, and index.
        among: ``(rows, slots, slots)`` True for the new tokens that each sees.
        about: a token for masks; True if tokens of a prefix do not see later ones.
    """
    tokens, is_mask, positions, block, last = inputs
    masked, causal = about
    slots = tokens.shape[1]
    tokens[:] = masked
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
