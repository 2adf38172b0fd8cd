"""Make the drafts of a batch: a class for each kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec_plugins.decoding.acceptance import SamplingRule, Scoring
from specdec_plugins.decoding.acceptance.sampling import Proposal, draw
from specdec_plugins.decoding.batch import Batch, prefixes_of
from specdec_plugins.decoding.controllers.base import Controller
from specdec_plugins.decoding.drafts import ChainDraft, Draft, DrawnDraft, LatticeTrees
from specdec_plugins.decoding.step_result import StepResult
from specdec_plugins.decoding.steps.drafter import CachedDrafter
from specdec_plugins.engines.engine import Engine
from specdec_plugins.models.lattice import SlotScores


class Drafting:
    """Makes the drafts of a batch, for which it is constructed; this null object drafts nothing.

    A subclass may store something for each row, in the order of ``batch.rows``. The source is in
    ``batch.net_input``, the committed tokens are the lists ``batch.tokens``.
    """

    def draft(self, batch: Batch) -> Draft:
        """Return the next draft, of ``batch.draft_lengths``."""
        return ChainDraft.empty(len(batch.rows), batch.device)

    def observe(self, result: StepResult) -> None:
        """Take in what a step committed; afterwards :meth:`keep` drops finished rows."""

    def keep(self, rows: list[int], width: int) -> None:
        """Go on with ``rows`` only, none of which has more than ``width`` committed tokens."""


@dataclass(frozen=True)
class DraftSource:
    """Drafts without a trained drafter."""

    drafting: Callable[[Batch, bool], Drafting]
    """Returns the drafting of a batch; True: its drafts are for sampling."""
    engine: Engine | None = None
    """Runs the model that proposes them, if one does."""


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
        self._scoring, self._with_confidences = scoring, with_confidences
        drafter.start(batch.net_input, batch.encoder_out, batch.capacity)

    def draft(self, batch: Batch) -> Draft:
        slots = max(batch.draft_lengths)
        if not slots:
            return super().draft(batch)
        states, scores = self._run(batch, slots)
        lengths = batch.draft_lengths, batch.on_device.draft_lengths
        if self._scoring is not None or self._with_confidences:
            return chosen_draft(lengths, states, scores, self._scoring)
        return ChainDraft(scores.choose(), *lengths, states, states.new_empty(len(states), 0))

    def _run(
        self, batch: Batch, slots: int, rows: list[int] | None = None
    ) -> tuple[Tensor, SlotScores]:
        """Return states and scores of the next slots of all rows, or of some."""
        return self.drafter.draft(prefixes_of(batch, self.drafter.causal, slots, rows), slots)

    def keep(self, rows: list[int], width: int) -> None:
        self.drafter.keep(rows, width)


def chosen_draft(
    lengths: tuple[list[int], Tensor], states: Tensor, scores: SlotScores, scoring: Scoring | None
) -> ChainDraft:
    """Return the draft of a drafter's pass, with probabilities; drawn by a ``scoring``.

    ``lengths``: draft lengths, on the host and on the device.
    """
    if scoring is None:
        tokens, confidences = scores.choose_with_confidence()
        return ChainDraft(tokens, *lengths, states, confidences)
    tokens, proposal = draw_chain(scores, scoring)
    return DrawnDraft(tokens, *lengths, states, proposal.drawn, proposal=proposal)


def draw_chain(scores: SlotScores, scoring: Scoring) -> tuple[Tensor, Proposal]:
    """Return ``(rows, slots)`` tokens, each drawn after the one before it, and their proposal."""
    lattice, rule, temperature = scores.lattice(), scoring.rule, scoring.temperature
    assert isinstance(rule, SamplingRule)
    first = rule.propose(lattice.first, temperature)
    following = rule.propose(lattice.following, temperature)
    indices = lattice.walk(draw(first), draw(following))
    probabilities = torch.cat([first[:, None], lattice.after(following, indices)], dim=1)
    drawn = probabilities.gather(-1, indices[..., None])[..., 0]
    return lattice.tokens(indices), Proposal(lattice.candidates, probabilities, drawn)


class TreeDrafting(ChainDrafting):
    """Grows trees of probable continuations, from the last draft's rest where it will do."""

    def __init__(self, drafter: CachedDrafter, batch: Batch, controller: Controller) -> None:
        super().__init__(drafter, batch)
        self._controller = controller
        self._trees: LatticeTrees | None = None

    def draft(self, batch: Batch) -> Draft:
        nodes, rows = max(batch.draft_lengths), list(range(len(batch.rows)))
        if not nodes:
            self._trees = None
            return Drafting.draft(self, batch)
        if self._trees is not None:
            expected, enough = self._trees.expected_accepted(nodes), self._controller.reuse_above
            rows = [row for row in rows if expected[row] <= 0 or expected[row] < enough]
        if rows:
            self._renew(batch, rows, min(nodes, self._controller.depth))
        assert self._trees is not None
        renewed = set(rows)
        called = [row in renewed for row in range(len(batch.rows))]
        return self._trees.grow(nodes, batch.draft_lengths, called)

    def _renew(self, batch: Batch, rows: list[int], slots: int) -> None:
        """Draft for some rows; the trees of the others stay."""
        some = None if self._trees is None or len(rows) == len(batch.rows) else rows
        _, scores = self._run(batch, slots, some)
        padding = self.drafter.decoder.padding
        drafted = LatticeTrees(scores.lattice(), self.drafter.model.eos, padding)
        if some is None or self._trees is None:
            self._trees = drafted
        else:
            self._trees.replace(rows, drafted)

    def observe(self, result: StepResult) -> None:
        if self._trees is not None and not self._trees.advance(result.accepted, result.last):
            self._trees = None

    def keep(self, rows: list[int], width: int) -> None:
        super().keep(rows, width)
        if self._trees is not None:
            self._trees.keep(rows)
