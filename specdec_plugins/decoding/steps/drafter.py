"""The drafter's decoder: states of a block's slots after every row's prefix, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_plugins.decoding.indices import indices, row_starts, told
from specdec_plugins.decoding.steps.cache import KVCache, attention_mask
from specdec_plugins.decoding.steps.encoder import (
    Encode,
    MemoryStep,
    all_projections,
    example_memory,
    example_tokens,
    frozen_encoder,
)
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.engine import Engine
from specdec_plugins.engines.step import CachedStep, Results
from specdec_plugins.host.fairseq_types import EncoderOut, NetInput
from specdec_plugins.models.drafter import Drafter
from specdec_plugins.models.drafter_decoder import Memory
from specdec_plugins.models.lattice import SlotScores
from specdec_plugins.models.layers import Attend, KeysValues, additive, source_mask


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
        self._begin(states, capacity)
        (keys_values,) = self._read_source(states)
        mask = self._source_mask(encoder_out, states)
        assert self._table is not None
        copies = self.decoder.copies(encoder_out, mask, self._table)
        self._memory = Memory(keys_values, mask, copies)

    def _begin(self, states: Tensor, capacity: int) -> None:
        """Cache nothing, of the rows of the encoder's ``states`` ``(source, rows, channels)``."""
        # Where rows differ in what is cached and in what is new, both may be longest at once.
        capacity = 2 * capacity
        layer = self.step.layers[0]
        shape = len(self.step.layers), states.size(1), capacity, layer.heads, layer.head_dim
        self._cache = KVCache(*shape, states.dtype, states.device)
        self._tell_positions(capacity, states.dtype)

    def _tell_positions(self, count: int, dtype: torch.dtype) -> None:
        """Know what stands for so many positions."""
        if self._table is None or len(self._table) < count or self._table.dtype != dtype:
            self._table = self.decoder.positions(count)

    def _source_mask(self, encoder_out: EncoderOut, states: Tensor) -> Tensor | None:
        """What to add to the scores of cross-attention."""
        return source_mask(encoder_out, states.dtype)

    def draft(self, prefixes: Prefixes, block_size: int) -> tuple[Tensor, SlotScores]:
        """``(rows, block_size, channels)``: the states of slots for positions p … of every row, and
        what the slots may hold.

        The slots of a row see each other, but not those that are in the batch for other rows only.
        """
        cached, device = prefixes.cached, prefixes.tokens.device
        rows, window, width = len(cached), max(prefixes.new), max(cached)
        begins, new, own = told([cached, prefixes.new, prefixes.own(block_size)], device).unbind()
        chosen = None if prefixes.rows is None else told(prefixes.rows, device)
        index = indices(window + block_size, device)
        positions = begins[:, None] + index
        tokens, features = _new_tokens(prefixes, positions[:, :window], chosen)
        # Right after its own new tokens comes a row's block; what follows that is never read.
        tokens = F.pad(tokens, (0, block_size), value=self.decoder.padding + 1)
        block = new[:, None] + indices(block_size, device)
        inputs = tokens, index >= new[:, None], positions, block, prefixes.last
        mask = self._mask(prefixes, begins, new, own, block_size)
        room = self._cache.reserve(width, window + block_size, chosen)
        memory = self._memory if chosen is None else self._memory.of(chosen)
        rest = memory.keys_values, memory.mask, memory.copies, features
        states, *scores = self._run(room, mask, *inputs, self._table, *rest)
        in_place = chosen is None and min(cached) == width
        if self.causal and not in_place:
            columns = (width + index[:window]).expand(rows, -1)
            self._cache.write(room, columns, positions[:, :window], chosen)
        return states, self.step.score.read(*scores)

    def _mask(
        self, prefixes: Prefixes, cached: Tensor, new: Tensor, own: Tensor, block_size: int
    ) -> Tensor | None:
        """Attention of new tokens and block, over what is cached and among themselves.

        ``cached``, ``new``, ``own``: ``(rows,)`` what the prefixes say.
        """
        window, dtype, device = max(prefixes.new), self._cache.store.dtype, new.device
        if prefixes.slots is None and min(prefixes.new) == window:
            among = _among(window, block_size, self.causal, dtype, device)
        else:
            index, last = indices(window + block_size, device), (new + own)[:, None]
            seen = torch.where(index >= new[:, None], last, index + 1) if self.causal else last
            among = additive(index < seen[..., None], dtype)[:, None]
        return attention_mask(prefixes.cached, cached, among, dtype)

    def keep(self, rows: list[int], width: int) -> None:
        """Go on with ``rows`` only, of which at most ``width`` positions are cached."""
        self._memory = self._memory.keep(rows, self._keep(rows, width if self.causal else 0))

    def _keep(self, rows: list[int], width: int) -> int:
        """In the cache; returns how many rows there are then, with what is padding."""
        self._cache.keep(rows, width)
        return len(rows)


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
