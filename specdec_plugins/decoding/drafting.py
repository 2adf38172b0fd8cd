"""Make the drafts of a batch: a class for each kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.decoding.acceptance import SamplingRule, Scoring
from specdec_plugins.decoding.acceptance.sampling import Proposal, draw
from specdec_plugins.decoding.batch import Batch, prefixes_of
from specdec_plugins.decoding.controllers.base import Controller
from specdec_plugins.decoding.drafts import ChainDraft, Draft, TreeDraft
from specdec_plugins.decoding.drafts.growth import HostLattice, Trees, advance, grow_all
from specdec_plugins.decoding.kernels import Bools, on_host
from specdec_plugins.decoding.step_result import StepResult
from specdec_plugins.decoding.steps.drafter import CachedDrafter
from specdec_plugins.engines.engine import Engine
from specdec_plugins.models.lattice import SlotScores

#: The block size of texts: the largest number of tokens that a step drafts.
LONGEST = 64


class Drafting:
    """Makes the drafts of a batch, for which it is constructed; this null object drafts nothing.

    A subclass may store something for each row, in the order of ``batch.rows``. The source is in
    ``batch.net_input``, the committed tokens are the lists ``batch.tokens``.
    """

    def draft(self, batch: Batch) -> Draft:
        """Return the next draft, of ``batch.draft_lengths``."""
        return ChainDraft.empty(len(batch.rows), batch.device)

    def observe(self, result: StepResult) -> None:
        """Take in what a step committed; afterwards :meth:`select` drops finished rows."""

    def select(self, rows: list[int], width: int) -> None:
        """Go on with ``rows`` only, none of which has more than ``width`` committed tokens."""


@dataclass(frozen=True)
class DraftSource:
    """Drafts without a trained drafter."""

    #: Returns the drafting of a batch; True: its drafts are for sampling.
    drafting: Callable[[Batch, bool], Drafting]
    #: Runs the model that proposes them, if one does.
    engine: Engine | None = None


#: Returns a source of drafts. It is called when the verifier's steps are ready, which takes most
#: memory: what it makes is not yet there then.
MakeSource = Callable[[], DraftSource]


class ChainDrafting(Drafting):
    """Chooses each slot's token after the one before it, or draws it by a ``scoring``."""

    def __init__(
        self,
        drafter: CachedDrafter,
        batch: Batch,
        scoring: Scoring | None = None,
        with_confidences: bool = False,
    ) -> None:
        """``with_confidences``: drafts have the drafter's probability of each token."""
        self.drafter = drafter
        self._scoring = scoring
        self._with_confidences = with_confidences
        drafter.start(batch.net_input, batch.encoder_out, batch.capacity)

    def draft(self, batch: Batch) -> Draft:
        slots = max(batch.draft_lengths)
        if not slots:
            return super().draft(batch)
        states, scores = self._run(batch, slots)
        if self._scoring is not None or self._with_confidences:
            return chosen_draft(batch.draft_lengths, states, scores, self._scoring)
        unknown = states.new_empty(len(states), 0)
        return ChainDraft(scores.choose(), batch.draft_lengths, states, unknown)

    def _run(
        self, batch: Batch, slots: int, rows: list[int] | None = None
    ) -> tuple[Tensor, SlotScores]:
        """Return states and scores of the next slots of all rows, or of some."""
        return self.drafter.draft(prefixes_of(batch, self.drafter.causal, slots, rows), slots)

    def select(self, rows: list[int], width: int) -> None:
        self.drafter.select(rows, width)


def chosen_draft(
    lengths: list[int], states: Tensor, scores: SlotScores, scoring: Scoring | None
) -> ChainDraft:
    """Return the draft of a drafter's pass, with probabilities; drawn by a ``scoring``."""
    if scoring is None:
        tokens, confidences = scores.choose_with_confidence()
        return ChainDraft(tokens, lengths, states, confidences)
    tokens, proposal = draw_chain(scores, scoring)
    return ChainDraft(tokens, lengths, states, proposal.drawn, proposal)


def draw_chain(scores: SlotScores, scoring: Scoring) -> tuple[Tensor, Proposal]:
    """Return ``(rows, slots)`` tokens, each drawn after the one before it, and their proposal."""
    lattice = scores.lattice()
    rule = scoring.rule
    assert isinstance(rule, SamplingRule)
    first = rule.propose(lattice.first, scoring.temperature)
    following = rule.propose(lattice.following, scoring.temperature)
    indices = lattice.walk(draw(first), draw(following))
    probabilities = torch.cat([first[:, None], lattice.after(following, indices)], dim=1)
    drawn = probabilities.gather(-1, indices[..., None])[..., 0]
    return lattice.tokens(indices), Proposal(lattice.candidates, probabilities, drawn)


class TreeDrafting(ChainDrafting):
    """Grows trees of the most probable continuations, from the last draft's rest where it will do.

    The slots after a rejected one were drafted without knowing the tokens before them, and a
    lattice scores how well they follow the verifier's token. If that is among its slot's
    candidates, a tree can be grown from the rest without a pass of the drafter.

    A token's probability is that of the path to it, so the most probable tokens form a tree: broad
    where the drafter is unsure, deep where it is sure. This is best-first search as in OPT-Tree
    (Wang et al., TACL 2025) and EAGLE-2 (Li et al., EMNLP 2024), but a lattice needs no pass of the
    drafter for each level. Nothing continues an EOS.
    """

    def __init__(self, drafter: CachedDrafter, batch: Batch, controller: Controller) -> None:
        super().__init__(drafter, batch)
        self._controller = controller
        self._slots = min(controller.block_size, controller.max_length)
        #: None where nothing is left of any row's.
        self._lattice: HostLattice | None = None
        #: Each row's first slot to fill, the candidate chosen in the slot before it, and the number
        #: of slots.
        self._positions = np.empty((3, 0), np.int64)

    def draft(self, batch: Batch) -> Draft:
        nodes = max(batch.draft_lengths)
        if not nodes:
            self._lattice = None
            return Drafting.draft(self, batch)
        anew = np.ones(len(batch.rows), np.bool_)
        if self._lattice is not None:
            trees = self._grow(self._lattice, nodes)
            anew = (trees[-1] <= 0) | (trees[-1] < self._controller.reuse_above)
        if anew.any():
            trees = self._grow(self._renewed(batch, anew), nodes)
        return TreeDraft.of(trees, batch.draft_lengths, anew.tolist(), batch.device)

    def _grow(self, lattice: HostLattice, nodes: int) -> Trees:
        return grow_all(
            lattice, self._positions, nodes, self.drafter.model.eos, self.drafter.decoder.padding
        )

    def _renewed(self, batch: Batch, anew: Bools) -> HostLattice:
        """Draft for some rows; the lattices of the others stay."""
        rows = None
        if not anew.all():
            rows = anew.nonzero()[0].tolist()
        lattice = self._run(batch, self._slots, rows)[1].lattice()
        parts = on_host(lattice.candidates), on_host(lattice.first), on_host(lattice.following)
        if self._lattice is None or rows is None:
            self._lattice = parts
            self._positions = np.empty((3, len(anew)), np.int64)
        else:
            stored: Any
            for stored, new in zip(self._lattice, parts):
                stored[rows] = new
        self._positions[:, anew] = np.array([[0], [0], [self._slots]])
        return self._lattice

    def observe(self, result: StepResult) -> None:
        if self._lattice is not None:
            gone = np.array((result.accepted, result.last))
            if not advance(self._lattice[0], self._positions, gone):
                self._lattice = None

    def select(self, rows: list[int], width: int) -> None:
        super().select(rows, width)
        if self._lattice is not None:
            candidates, first, following = self._lattice
            self._lattice = candidates[rows], first[rows], following[rows]
            self._positions = np.ascontiguousarray(self._positions[:, rows])
