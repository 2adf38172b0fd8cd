"""The drafter's decoder: states of a block's slots after every row's prefix, in one pass."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from specdec_plugins.decoding.indices import indices
from specdec_plugins.decoding.steps.cache import KVCache, attention_mask
from specdec_plugins.decoding.steps.encoder import Encode, frozen_encoder
from specdec_plugins.fairseq_types import EncoderOut, NetInput
from specdec_plugins.models.drafter import Drafter
from specdec_plugins.models.drafter_decoder import DrafterDecoder, Memory
from specdec_plugins.models.layers import additive, attend_over


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
    features: Tensor | None
    """``(rows, window, channels)`` the verifier's states for ``tokens``, for drafters that read
    them."""
    slots: Tensor | None = None
    """``(rows,)`` how many slots each row is to have of the block, at least 1; None: all."""
    rows: Tensor | None = None
    """``(rows,)`` which rows of the batch these are; None: all."""


class DrafterStep(nn.Module):
    """States of new prefix tokens and of a block's slots: a function of tensors."""

    def __init__(self, decoder: DrafterDecoder) -> None:
        super().__init__()
        self.decoder = decoder
        with torch.no_grad():
            self.layers = decoder.runners(frozen=True)

    def forward(
        self,
        tokens: Tensor,
        is_mask: Tensor,
        positions: Tensor,
        table: Tensor,
        cached: Tensor,
        mask: Tensor | None,
        memory: Memory,
        features: Tensor | None,
    ) -> Tensor:
        """States ``(rows, slots, channels)``, before the output layer.

        Args:
            tokens: ``(rows, slots)`` prefix tokens, and whatever where ``is_mask``.
            positions: ``(rows, slots)`` where in the target each stands.
            table: ``(length, channels)`` what stands for a position.
            cached: ``(layers, rows, width + slots, 2, heads, dim)`` keys and values of the prefix
                tokens before, then room, into which those of the slots are written.
            mask: to be added to the scores of self-attention.
            memory: what the drafter knows of the source.
            features: ``(rows, n, channels)`` of the first n slots, read by its feature reader.
        """
        x = self.decoder.embed(tokens, is_mask, positions, memory, table, features)
        attends = [attend_over(keys_values, mask) for keys_values in cached]
        return self.decoder.run(x, positions, table, self.layers, attends, memory)


class CachedDrafter:
    """A :class:`DrafterStep` over a batch in which every row makes its own progress.

    A causal drafter keeps its prefix states; a bidirectional one is given the whole prefix anew at
    every step. Built once for a model; :meth:`start` begins a batch.
    """

    def __init__(self, model: Drafter) -> None:
        self.model = model
        self.decoder = model.decoder
        self.causal = model.decoder.causal
        self.reads_features = model.uses_verifier_features
        self.step = DrafterStep(self.decoder)
        self._encode: Encode | None = None
        with torch.no_grad():
            if model.encoder is not None:
                self._encode = frozen_encoder(model.encoder)
            self.decoder.prepare()
            self._read = self.decoder.feature_reader(frozen=True) if self.reads_features else None
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
        if self._table is None or len(self._table) < capacity or self._table.dtype != states.dtype:
            self._table = self.decoder.positions(capacity)
        self._memory = self.decoder.memory(encoder_out, self.step.layers, self._table)
        layer = self.step.layers[0]
        # Where rows differ in what is cached and in what is new, both may be longest at once.
        shape = len(self.step.layers), states.size(1), 2 * capacity, layer.heads, layer.head_dim
        self._cache = KVCache(*shape, states.dtype, states.device)

    def states(self, prefixes: Prefixes, block_size: int) -> Tensor:
        """``(rows, block_size, channels)``: the states of slots for positions p … of every row.

        The slots of a row see each other, but not those that are in the batch for other rows only.
        """
        tokens, new = prefixes.tokens, prefixes.new_on_device
        window, device = tokens.size(1), tokens.device
        index = indices(window + block_size, device)
        cached_on_device = prefixes.lengths_on_device - new
        positions = cached_on_device[:, None] + index
        is_mask = index >= new[:, None]
        # Right after its own new tokens comes a row's block; what follows that is never read.
        slots = torch.nn.functional.pad(tokens, (0, block_size), value=self.decoder.padding + 1)
        features = prefixes.features
        if features is not None and self._read is not None:
            features = self._read(features)
        cached = [length - n for length, n in zip(prefixes.lengths, prefixes.new)]
        room = self._cache.reserve(max(cached), window + block_size, prefixes.rows)
        alike = prefixes.slots is None and min(prefixes.new) == window
        if alike:
            among = _among(window, block_size, self.causal, room.dtype, device)
        else:
            last = new[:, None] + (
                block_size if prefixes.slots is None else prefixes.slots[:, None]
            )
            seen = torch.where(is_mask, last, index + 1) if self.causal else last
            among = additive(index < seen[..., None], room.dtype)[:, None]
        mask = attention_mask(cached, cached_on_device, among, room.dtype)
        table = self._table
        assert table is not None
        memory = self._memory if prefixes.rows is None else self._memory.keep(prefixes.rows)
        x = self.step(slots, is_mask, positions, table, room, mask, memory, features)
        if self.causal and (prefixes.rows is not None or min(cached) < max(cached)):
            columns = (max(cached) + index[:window]).expand(len(cached), -1)
            self._cache.write(room, columns, positions[:, :window], prefixes.rows)
        if alike:
            return x[:, window:]
        block = new[:, None] + indices(block_size, device)
        return x.gather(1, block[..., None].expand(-1, -1, x.size(-1)))

    def keep(self, rows: Tensor, width: int) -> None:
        """Go on with ``rows`` only, of which at most ``width`` positions are cached."""
        self._cache.keep(rows, width)
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
