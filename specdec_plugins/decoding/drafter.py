"""Drafting a block for every row of a batch, with a drafter's weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from specdec_plugins.decoding.batch import Prefixes
from specdec_plugins.decoding.controllers import Draft
from specdec_plugins.decoding.indices import indices
from specdec_plugins.decoding.kv_cache import KVCache
from specdec_plugins.decoding.probabilities import Proposal, draw
from specdec_plugins.decoding.tree_source import TreeSource
from specdec_plugins.models.drafter import Drafter
from specdec_plugins.models.encoder_runner import Encode, frozen_encoder
from specdec_plugins.models.lattice import Lattice

Propose = Callable[[Tensor], Tensor]
"""From scores ``(…, candidates)`` to the probabilities that tokens are to be drawn by."""


class CachedDrafter:
    """One drafter over a batch in which every row makes its own progress.

    A causal drafter keeps its prefix states; a bidirectional one is given the whole prefix anew at
    every step. Built once for a model; :meth:`start` begins a batch.
    """

    def __init__(self, model: Drafter) -> None:
        self.model = model
        self.decoder = model.decoder
        self.causal = model.decoder.causal
        self.reads_features = model.uses_verifier_features
        self._encode: Encode | None = None
        with torch.no_grad():
            if model.encoder is not None:
                self._encode = frozen_encoder(model.encoder)
            self.runners = self.decoder.runners(frozen=True)
            self.decoder.prepare()
            self._read = self.decoder.feature_reader(frozen=True) if self.reads_features else None
        self._table: Tensor | None = None

    def encode(self, net_input: dict[str, Tensor], verifier_out: Any) -> Any:
        """The drafter's own encoder output, or the verifier's where it shares that encoder."""
        if self._encode is None:
            return verifier_out
        return self._encode(net_input["src_tokens"], net_input["src_lengths"])

    def start(self, encoder_out: Any, capacity: int) -> None:
        """Begin a batch whose rows will hold at most ``capacity`` slots, block included."""
        states = encoder_out["encoder_out"][0]
        if self._table is None or len(self._table) < capacity or self._table.dtype != states.dtype:
            self._table = self.decoder.positions(capacity)
        self._memory = self.decoder.memory(encoder_out, self.runners, self._table)
        runner = self.runners[0]
        self._cache = KVCache(
            len(self.runners),
            states.size(1),
            capacity,
            runner.heads,
            runner.head_dim,
            states.dtype,
            states.device,
        )

    def draft(
        self,
        prefixes: Prefixes,
        last: Tensor,
        block_size: int,
        with_probabilities: bool = False,
        propose: Propose | None = None,
    ) -> Draft:
        """Draft ``block_size`` tokens after every row's prefix.

        Args:
            last: ``(rows,)`` the last token of each prefix, EOS of an empty one.
            with_probabilities: also say how likely each drafted token is to the drafter.
            propose: draw the tokens by these probabilities instead of taking the best.

        Returns:
            ``(rows, block_size)`` tokens for positions p … p + block_size - 1.
        """
        states = self.states(prefixes, block_size)
        return self.chain(states, last, with_probabilities, propose)

    def trees(self, prefixes: Prefixes, last: Tensor, block_size: int) -> TreeSource:
        """What to grow trees from, ``block_size`` deep at most; arguments as of :meth:`draft`."""
        lattice = self.decoder.lattice(self.states(prefixes, block_size), last)
        return TreeSource(lattice, self.model.eos, self.decoder.padding, prefixes.slots)

    def chain(
        self, states: Tensor, last: Tensor, with_probabilities: bool, propose: Propose | None
    ) -> Draft:
        """Tokens that each follow the one before, from :meth:`states`; else as of :meth:`draft`."""
        if propose is not None:
            tokens, proposal = _drawn(self.decoder.lattice(states, last), propose)
            return Draft(tokens, states, proposal.drawn, proposal=proposal)
        if with_probabilities:
            tokens, probabilities = self.decoder.choose_with_confidence(states, last)
            return Draft(tokens, states, probabilities)
        return Draft(self.decoder.choose(states, last), states)

    def states(self, prefixes: Prefixes, block_size: int) -> Tensor:
        """``(rows, block_size, channels)``: what :meth:`draft`, given the same, chooses from.

        The slots of a row see each other, but not those that are in the batch for other rows only.
        """
        tokens, new, lengths = prefixes.tokens, prefixes.new, prefixes.lengths
        index = indices(tokens.size(1) + block_size, tokens.device)
        positions = (lengths - new)[:, None] + index
        is_mask = index >= new[:, None]
        # Right after its own new tokens comes a row's block; what follows that is never read.
        slots = torch.nn.functional.pad(tokens, (0, block_size), value=self.decoder.padding + 1)
        features = prefixes.features
        if features is not None and self._read is not None:
            features = self._read(features)
        table = self._table
        assert table is not None
        memory = self._memory if prefixes.rows is None else self._memory.keep(prefixes.rows)
        x = self.decoder.embed(slots, is_mask, positions, memory, table, features)
        ends = (lengths + (block_size if prefixes.slots is None else prefixes.slots))[:, None]
        limits = torch.where(is_mask, ends, positions + 1) if self.causal else ends + 0 * positions
        width = prefixes.longest + block_size
        attends = self._cache.open(positions, limits, width, masked=True, rows=prefixes.rows)
        x = self.decoder.run(x, positions, table, self.runners, attends, memory)
        block = new[:, None] + indices(block_size, tokens.device)
        return x.gather(1, block[..., None].expand(-1, -1, x.size(-1)))

    def keep(self, rows: Tensor, width: int) -> None:
        """Go on with ``rows`` only, of which at most ``width`` cache slots are valid."""
        self._cache.keep(rows, width)
        self._memory = self._memory.keep(rows)


def _drawn(lattice: Lattice, propose: Propose) -> tuple[Tensor, Proposal]:
    """A way through a lattice, drawn slot by slot, and what it was drawn from."""
    first, following = propose(lattice.first), propose(lattice.following)
    places = lattice.walk(draw(first), draw(following))
    probabilities = torch.cat([first[:, None], lattice.after(following, places)], dim=1)
    drawn = probabilities.gather(-1, places[..., None])[..., 0]
    return lattice.tokens(places), Proposal(lattice.candidates, probabilities, drawn)
