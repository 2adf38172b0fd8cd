"""A whole step as one function of tensors that never move: draft, verify, accept, append.

The same operations are launched at every step, on the same memory, whatever it holds, and the host
is asked nothing: so it can be recorded once and replayed. The host reads what a row has committed
from one small tensor; trees, which it grows from the drafter's lattice, it writes to another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.decoding.acceptance import Scoring, Verification
from specdec_plugins.decoding.acceptance.sampling import Proposal
from specdec_plugins.decoding.acceptance.verification import (
    AcceptedPath,
    chain_links,
    walk_by_tensors,
)
from specdec_plugins.decoding.drafting import draw_chain
from specdec_plugins.decoding.drafts.growth import HostLattice, grow_all
from specdec_plugins.decoding.limits import TokenBans
from specdec_plugins.decoding.resident.state import Kind, Outcome, Sentence, Shape, State, TreeInput
from specdec_plugins.decoding.steps.cache import mask_by_tensors
from specdec_plugins.decoding.steps.drafter import DrafterStep, block_inputs
from specdec_plugins.decoding.steps.encoder import StockEncoder
from specdec_plugins.decoding.steps.verifier import VerifierStep
from specdec_plugins.engines.engine import Recorder
from specdec_plugins.models.lattice import SlotScores
from specdec_plugins.models.layers import additive, position_table, source_memory


@dataclass(frozen=True)
class Models:
    """The parts of a step."""

    #: The verifier's, and the drafter's if it has one.
    encoders: list[StockEncoder]
    verifier: VerifierStep
    scoring: Scoring
    bans: TokenBans
    drafter: DrafterStep | None = None


class ResidentStep:
    """A step and its recording."""

    def __init__(self, models: Models, engine: Recorder, kind: Kind, shape: Shape) -> None:
        self.kind = kind
        self._models = models
        self._verifier = models.verifier
        self._drafter = models.drafter
        self._bans = models.bans
        decoder = models.verifier.decoder
        weight: Tensor = decoder.embed_tokens.weight
        self._dtype = weight.dtype
        device = weight.device
        self.state = State(models.verifier, models.drafter, kind, shape, weight)
        width = shape.width or kind.slots
        self._capacity = width - kind.slots
        self._rows = torch.arange(shape.rows, device=device)[:, None]
        self._index = torch.arange(max(kind.slots, kind.window + kind.block), device=device)
        self._table = position_table(decoder.embed_positions, width, decoder.padding_idx)
        self._source_tables = [
            position_table(encoder.model.embed_positions, shape.source, encoder.model.padding_idx)
            for encoder in models.encoders
        ]
        precision = torch.promote_types(weight.dtype, torch.float32)
        self.tree: TreeInput | None = None
        self._links = chain_links(kind.block, device)
        if kind.nodes:
            self.tree = TreeInput(shape.rows, kind, self._bans.pad, device)
            self._links = self.tree.links
        candidates = 0
        if self._drafter is not None and kind.block:
            candidates = self._drafter.score.candidates
            self._draft_table = self._drafter.decoder.positions(2 * width)
        self.outcome = Outcome(shape.rows, kind, candidates, precision, device)
        self._positions = np.zeros((3, shape.rows), np.int64)
        self._positions[2] = kind.block
        # Before it holds anything, since recording runs it.
        self.run = engine.record(self._step if shape.width else self._read, device)

    def begin(self, sentences: list[Sentence]) -> None:
        """Begin with some sentences, to be read."""
        self.state.begin(sentences, self._bans.pad, self._bans.eos)

    def take(self, other: ResidentStep, rows: list[int], into: list[int]) -> None:
        """Go on with ``rows`` of another step as the rows ``into``."""
        self.state.take(other.state, rows, into)
        if self.tree is not None:
            for name in Outcome.LATTICE:
                self.outcome.arrays[name][into] = other.outcome.arrays[name][rows]

    def grow(self) -> None:
        """Make the trees of all rows to verify next."""
        assert self.tree is not None
        arrays = self.outcome.arrays
        lattice = cast(
            HostLattice, tuple(np.ascontiguousarray(arrays[name]) for name in Outcome.LATTICE)
        )
        trees = grow_all(lattice, self._positions, self.kind.nodes, self._bans.eos, self._bans.pad)
        self.tree.write(trees)

    def _read(self) -> None:
        """Read the sources; for trees, make the first draft."""
        state = self.state
        visible = state.source != self._bans.pad
        state.memory_mask.copy_(additive(visible[:, None, None], self._dtype))
        states = [
            encoder.masked(state.source, visible, state.memory_mask, table)
            for encoder, table in zip(self._models.encoders, self._source_tables)
        ]
        state.memory.copy_(source_memory(self._verifier.layers, states[0]))
        if self._drafter is not None and state.draft_memory is not None:
            state.draft_memory.copy_(source_memory(self._drafter.layers, states[-1]))
        if self.tree is not None:
            self.outcome.draft(self._draft().lattice())

    def _step(self) -> None:
        """Run the whole step of chains; for trees, accept one and make the next draft."""
        if not self.kind.block:
            self._verify(self.state.tokens[:, :0], None)
        elif self.tree is not None:
            self._verify(self.tree.tokens, None)
            self.outcome.draft(self._draft().lattice())
        elif self._models.scoring.rule.draws:
            self._verify(*draw_chain(self._draft(), self._models.scoring))
        else:
            self._verify(self._draft().choose(), None)

    def _draft(self) -> SlotScores:
        """Return the scores of the slots after every row's last token."""
        state = self.state
        kind = self.kind
        drafter = self._drafter
        assert drafter is not None
        assert state.draft_cache is not None
        cached = state.lengths - state.new
        index = self._index[: kind.window + kind.block]
        is_mask, positions, block, among = block_inputs(cached, state.new, index, kind.block)
        mask = mask_by_tensors(cached, self._capacity, among, self._dtype)
        _, *scores = drafter(
            state.draft_cache,
            None,
            mask,
            state.tokens,
            is_mask,
            positions,
            self._draft_table,
            state.draft_memory,
            state.memory_mask,
            None,
            state.features,
            block,
            state.last,
        )
        self._keep(state.draft_cache, index[None, : kind.window], positions[:, : kind.window])
        return drafter.score.read(*scores)

    def _verify(self, drafted: Tensor, proposal: Proposal | None) -> None:
        """Accept what the verifier wants of a draft ``(rows, slots)``, and append it."""
        state = self.state
        links = self._links
        scoring = self._models.scoring
        read = torch.cat([state.last[:, None], drafted], dim=1)
        positions = state.lengths[:, None] + links.depths
        mask = mask_by_tensors(state.lengths, self._capacity, links.ancestors, self._dtype)
        logits, states, normalisers = self._verifier(
            state.cache, None, mask, read, positions, self._table, state.memory, state.memory_mask
        )
        if scoring.changes:
            logits, normalisers = scoring.changed(
                logits, state.history, state.lengths, drafted, links.ancestors
            )
        self._bans.apply(logits, positions, state.limits, by_tensors=True)
        verification = Verification(logits, self._bans.eos, normalisers, by_tensors=True)
        rule = scoring.rule
        good, best = rule.judge(verification, drafted, links.after.expand_as(drafted), proposal)
        if self.tree is None and self.kind.block > 1:
            good[:, 1:].logical_and_(drafted[:, :-1] != self._bans.eos)
        path = walk_by_tensors(links, drafted, good, best, self._bans.eos, rule.several)
        self._append(path, verification.of(path.tokens, path.sources), states)

    def _append(self, path: AcceptedPath, scores: Tensor, states: Tensor) -> None:
        """Append what was accepted, and send it to the host."""
        state = self.state
        window = self.kind.window
        self.outcome.accept(path, scores)
        positions = state.lengths[:, None] + self._index[:window]
        self._keep(state.cache, path.sources, positions)
        if self._models.scoring.repetition_penalty != 1:
            state.history[self._rows, positions] = path.tokens
        count = path.committed[:, 0]
        last = state.last
        if self.kind.block:
            state.tokens[:, :window] = path.tokens
            if state.features is not None:
                state.features.copy_(states[self._rows, path.sources])
            torch.gather(path.tokens, 1, path.committed - 1, out=last[:, None])
        else:
            last.copy_(path.tokens[:, 0])
        # Rows that have ended begin anew, where there is room for whatever they do.
        state.going.logical_and_(last != self._bans.eos)
        state.lengths.add_(count).mul_(state.going)
        if self.kind.block:
            torch.mul(count, state.going, out=state.new)

    def _keep(self, cache: Tensor, sources: Tensor, positions: Tensor) -> None:
        """Cache each row's tokens of indices ``sources`` at ``positions``."""
        columns = cache.permute(2, 4, 0, 1, 3, 5)
        columns[self._rows, positions] = columns[self._rows, self._capacity + sources]
