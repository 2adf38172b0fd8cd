"""The drafter's decoder: states of a block's slots after every row's prefix, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_plugins.decoding.indices import indices
from specdec_plugins.decoding.steps.cache import (
    KVCache,
    attention_mask,
    block_mask,
    padded,
    padded_rows,
)
from specdec_plugins.decoding.steps.encoder import (
    Encode,
    MemoryStep,
    example_memory,
    example_tokens,
    frozen_encoder,
)
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.engine import Engine
from specdec_plugins.engines.step import CachedStep, Results
from specdec_plugins.fairseq_types import EncoderOut, NetInput
from specdec_plugins.models.drafter import Drafter
from specdec_plugins.models.drafter_decoder import Memory
from specdec_plugins.models.lattice import SlotScores
from specdec_plugins.models.layers import Attend, KeysValues, additive, source_mask


@dataclass(frozen=True)
class Prefixes:
    """What a drafter is to go on from, a row each; lists are what the host knows of tensors."""

    tokens: Tensor
    """``(rows, window)`` the tokens that the drafter has not cached, left-aligned; for one that is
    bidirectional the whole prefixes."""
    new: list[int]
    """How many of them each row has."""
    new_on_device: Tensor
    """``(rows,)``."""
    lengths: list[int]
    """Prefix lengths p."""
    lengths_on_device: Tensor
    """``(rows,)``."""
    last: Tensor
    """``(rows,)`` the token before each block: the prefix's last, EOS before the first."""
    features: Tensor | None
    """``(rows, window, channels)`` the verifier's states for ``tokens``, for drafters that read
    them."""
    slots: Tensor | None = None
    """``(rows,)`` how many slots each row is to have of the block, at least 1; None: all."""
    rows: Tensor | None = None
    """``(rows,)`` which rows of the batch these are; None: all."""


class DrafterStep(CachedStep):
    """States of a block's slots after new prefix tokens, and what the slots may hold."""

    memory_at = 6

    def __init__(self, model: Drafter, packed: bool = True) -> None:
        """``packed``: as of a layer."""
        super().__init__()
        self.decoder = model.decoder
        # The verifier's, maybe: a module of the step, too, for what traces its weights.
        self.tables = model.decoder.tables
        self._read = None
        with torch.no_grad():
            self.layers = self.decoder.runners(frozen=True, packed=packed)
            self.score = self.decoder.slot_scorer(packed)
            if model.uses_verifier_features:
                self._read = self.decoder.feature_reader(packed)
                self.channels = int(model.verifier.decoder.output_embed_dim)

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
        engine = engine or EagerEngine()
        self.model = model
        self.decoder = model.decoder
        self.causal = model.decoder.causal
        self.reads_features = model.uses_verifier_features
        self.step = DrafterStep(model, engine.packed)
        self._run = engine.prepare(self.step)
        self._read_source = engine.prepare(MemoryStep(self.step.layers))
        self._sizes = engine.sizes
        self._encode: Encode | None = None
        with torch.no_grad():
            if model.encoder is not None:
                self._encode = frozen_encoder(model.encoder, engine)
        self._table: Tensor | None = None

    def start(self, net_input: NetInput, verifier_out: EncoderOut | None, capacity: int) -> None:
        """Begin a batch: read the source with the drafter's own encoder, or take what the
        verifier's made of it.

        ``capacity``: of a row, prefix and block together.
        """
        encoder_out, sizes = verifier_out, self._sizes
        if self._encode is not None:
            encoder_out = self._encode(net_input["src_tokens"], net_input["src_lengths"])
        assert encoder_out is not None
        states = encoder_out["encoder_out"][0]
        # Where rows differ in what is cached and in what is new, both may be longest at once.
        capacity = 2 * sizes.capacity(capacity)
        if self._table is None or len(self._table) < capacity or self._table.dtype != states.dtype:
            self._table = self.decoder.positions(capacity)
        (keys_values,) = self._read_source(states)
        mask = source_mask(encoder_out, states.dtype)
        if mask is None and sizes.padded:
            mask = states.new_zeros(states.size(1), 1, 1, len(states))
        copies = self.decoder.copies(encoder_out, mask, self._table)
        self._memory = Memory(keys_values, mask, copies)
        layer = self.step.layers[0]
        shape = len(self.step.layers), states.size(1), capacity, layer.heads, layer.head_dim
        self._cache = KVCache(*shape, states.dtype, states.device)

    def draft(self, prefixes: Prefixes, block_size: int) -> tuple[Tensor, SlotScores]:
        """``(rows, block_size, channels)``: the states of slots for positions p … of every row, and
        what the slots may hold.

        The slots of a row see each other, but not those that are in the batch for other rows only.
        """
        new, (rows, window) = prefixes.new_on_device, prefixes.tokens.shape
        cached = [length - n for length, n in zip(prefixes.lengths, prefixes.new)]
        width = self._sizes.cached(max(cached))
        slots = self._sizes.block(window, block_size)
        index = indices(slots, new.device)
        positions = (prefixes.lengths_on_device - new)[:, None] + index
        # Right after its own new tokens comes a row's block; what follows that is never read.
        tokens = F.pad(prefixes.tokens, (0, slots - window), value=self.decoder.padding + 1)
        block = new[:, None] + indices(block_size, new.device)
        inputs = [tokens, index >= new[:, None], positions, block, prefixes.last]
        chosen, features = prefixes.rows, prefixes.features
        mask: Tensor | None
        if self._sizes.padded:
            most = self._cache.rows if chosen is None else self._sizes.rows(rows)
            chosen = None if chosen is None else padded_rows(chosen, most)
            inputs = [padded(x, most) for x in inputs]
            features = self._padded_features(features, most, slots)
            seen = _slots_seen(prefixes, block_size)
            shape, dtype = (most, slots), self._cache.store.dtype
            mask = block_mask(cached, prefixes.new, seen, width, shape, self.causal, dtype)
        else:
            mask = self._mask(prefixes, cached, block_size)
        room = self._cache.reserve(width, slots, chosen)
        memory = self._memory if chosen is None else self._memory.keep(chosen)
        rest = memory.keys_values, memory.mask, memory.copies, features
        results = self._run(room, mask, *inputs, self._table, *rest)
        in_place = prefixes.rows is None and min(cached) == width
        if self.causal and not in_place:
            columns = (width + index[:window]).expand(rows, -1)
            self._cache.write(room, columns, positions[:, :window], prefixes.rows)
        states, *scores = (result[:rows] for result in results)
        return states, self.step.score.read(*scores)

    def _mask(self, prefixes: Prefixes, cached: list[int], block_size: int) -> Tensor | None:
        """Attention of new tokens and block, over what is cached and among themselves."""
        window, new = prefixes.tokens.size(1), prefixes.new_on_device
        dtype, device = self._cache.store.dtype, new.device
        if prefixes.slots is None and min(prefixes.new) == window:
            among = _among(window, block_size, self.causal, dtype, device)
        else:
            own = block_size if prefixes.slots is None else prefixes.slots[:, None]
            index, last = indices(window + block_size, device), new[:, None] + own
            seen = torch.where(index >= new[:, None], last, index + 1) if self.causal else last
            among = additive(index < seen[..., None], dtype)[:, None]
        return attention_mask(cached, prefixes.lengths_on_device - new, among, dtype)

    def _padded_features(self, features: Tensor | None, rows: int, slots: int) -> Tensor | None:
        """The verifier's states for all slots, 0 where there are none."""
        if not self.reads_features:
            return None
        if features is None:
            return self._cache.store.new_zeros(rows, slots, self.step.channels)
        return padded(features, rows, slots)

    def keep(self, rows: Tensor, width: int) -> None:
        """Go on with ``rows`` only, of which at most ``width`` positions are cached."""
        # There may be fewer: an encoder that is not fairseq's own does not pad them.
        rows = padded_rows(rows, min(self._sizes.rows(len(rows)), self._cache.rows))
        self._cache.keep(rows, width if self.causal else 0)
        self._memory = self._memory.keep(rows)


@lru_cache(maxsize=1024)
def _among(
    new: int, block_size: int, causal: bool, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """``(slots, slots)`` additive mask of ``new`` prefix tokens and a block; not to be changed."""
    with torch.inference_mode(False):
        slots = new + block_size
        seen = torch.ones(slots, slots, dtype=torch.bool, device=device)
        if causal:
            seen[:new] = seen[:new].tril()
        return additive(seen, dtype)


def _slots_seen(prefixes: Prefixes, block_size: int) -> list[int]:
    """How many slots each row is to have of the block."""
    return [block_size] * len(prefixes.new) if prefixes.slots is None else prefixes.slots.tolist()
