"""Make drafts: one class for each kind."""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_plugins.decoding.acceptance import Scoring
from specdec_plugins.decoding.acceptance.sampling import Proposal, draw
from specdec_plugins.decoding.batch import Batch
from specdec_plugins.decoding.drafts import (
    ChainDraft,
    Draft,
    DrawnDraft,
    LatticeTrees,
)
from specdec_plugins.decoding.statistics import Stopwatch
from specdec_plugins.decoding.step_result import StepResult
from specdec_plugins.decoding.steps.drafter import CachedDrafter
from specdec_plugins.decoding.steps.prefixes import Prefixes
from specdec_plugins.models.lattice import SlotScores


class Drafting:
    """Makes the drafts of one batch after another; this null object drafts nothing."""

    def start(self, stopwatch: Stopwatch) -> None:
        """Begin a batch; ``stopwatch`` times the drafter's encoder and its passes."""

    def draft(self, batch: Batch, reuse_above: float) -> Draft:
        """Return the next draft, of ``batch.draft_lengths``.

        Args:
            reuse_above: re-verify what is left of a row's tree if its expected accepted length is
                at least this.
        """
        return ChainDraft.empty(len(batch.rows), batch.device)

    def observe(self, result: StepResult) -> None:
        """Take in what became of the last draft."""

    def keep(self, rows: list[int], width: int) -> None:
        """Go on with ``rows`` only, none longer than ``width``."""


class ChainDrafting(Drafting):
    """Each slot's token is chosen after the one before it."""

    def __init__(self, drafter: CachedDrafter, with_confidences: bool = False) -> None:
        """``with_confidences``: drafts have the drafter's probability of each token."""
        self.drafter = drafter
        self._with_confidences = with_confidences
        self._stopwatch = Stopwatch()
        self._started = False

    def start(self, stopwatch: Stopwatch) -> None:
        self._stopwatch, self._started = stopwatch, False

    def draft(self, batch: Batch, reuse_above: float) -> Draft:
        slots = max(batch.draft_lengths)
        if not slots:
            return super().draft(batch, reuse_above)
        self._read_source(batch)
        with self._stopwatch("draft", batch.device):
            return self._chosen(batch, *self._run(batch, slots))

    def _chosen(self, batch: Batch, states: Tensor, scores: SlotScores) -> Draft:
        """Return the draft of a pass of the drafter."""
        confidences = states.new_empty(len(states), 0)
        if self._with_confidences:
            tokens, confidences = scores.choose_with_confidence()
        else:
            tokens = scores.choose()
        lengths = batch.on_device.draft_lengths
        return ChainDraft(tokens, batch.draft_lengths, lengths, states, confidences)

    def _read_source(self, batch: Batch) -> None:
        """Let the drafter read the source before its first draft of a batch."""
        if self._started:
            return
        with self._stopwatch("encode", batch.device):
            self.drafter.start(batch.net_input, batch.encoder_out, batch.capacity)
            if len(batch.rows) < len(batch.net_input["src_tokens"]):
                self.drafter.keep(batch.rows, 0)
        self._started = True

    def _run(
        self, batch: Batch, slots: int, rows: list[int] | None = None
    ) -> tuple[Tensor, SlotScores]:
        """Return states and scores of the next slots of all rows, or of some."""
        return self.drafter.draft(prefixes_of(batch, self.drafter.causal, slots, rows), slots)

    def keep(self, rows: list[int], width: int) -> None:
        if self._started:
            self.drafter.keep(rows, width)


class DrawnDrafting(ChainDrafting):
    """Each slot's token is drawn after the one before it, as lossless sampling wants it."""

    def __init__(self, drafter: CachedDrafter, scoring: Scoring) -> None:
        super().__init__(drafter)
        self._scoring = scoring

    def _chosen(self, batch: Batch, states: Tensor, scores: SlotScores) -> Draft:
        tokens, proposal = draw_chain(scores, self._scoring)
        lengths = batch.on_device.draft_lengths
        return DrawnDraft(
            tokens, batch.draft_lengths, lengths, states, proposal.drawn, proposal=proposal
        )


def draw_chain(scores: SlotScores, scoring: Scoring) -> tuple[Tensor, Proposal]:
    """Return ``(rows, slots)`` tokens, each drawn after the one before it, and their proposal."""
    lattice = scores.lattice()
    rule, temperature = scoring.rule, scoring.temperature
    first = rule.propose(lattice.first, temperature)
    following = rule.propose(lattice.following, temperature)
    places = lattice.walk(draw(first), draw(following))
    probabilities = torch.cat([first[:, None], lattice.after(following, places)], dim=1)
    drawn = probabilities.gather(-1, places[..., None])[..., 0]
    return lattice.tokens(places), Proposal(lattice.candidates, probabilities, drawn)


class TreeDrafting(ChainDrafting):
    """Trees of the most probable continuations, of the last draft's rest where that will do."""

    def __init__(self, drafter: CachedDrafter, depth: int) -> None:
        """``depth``: the largest depth of trees, in tokens."""
        super().__init__(drafter)
        self._depth = depth
        self._trees: LatticeTrees | None = None

    def start(self, stopwatch: Stopwatch) -> None:
        super().start(stopwatch)
        self._trees = None

    def draft(self, batch: Batch, reuse_above: float) -> Draft:
        nodes, rows = max(batch.draft_lengths), list(range(len(batch.rows)))
        if not nodes:
            self._trees = None
            return Drafting.draft(self, batch, reuse_above)
        if self._trees is not None:
            expected = self._trees.expected_accepted(nodes)
            rows = [row for row in rows if expected[row] <= 0 or expected[row] < reuse_above]
        if rows:
            self._read_source(batch)
        with self._stopwatch("draft", batch.device):
            trees = self._renewed(batch, rows, min(nodes, self._depth)) if rows else self._trees
            assert trees is not None
            self._trees = trees
            called = [False] * len(batch.rows)
            for row in rows:
                called[row] = True
            return trees.grow(nodes, batch.draft_lengths, called)

    def _renewed(self, batch: Batch, rows: list[int], slots: int) -> LatticeTrees:
        """Draft for some rows, and keep what is left of the others."""
        old = self._trees
        some = None if old is None or len(rows) == len(batch.rows) else rows
        _, scores = self._run(batch, slots, some)
        padding = self.drafter.decoder.padding
        drafted = LatticeTrees(scores.lattice(), self.drafter.model.eos, padding)
        if old is None or some is None:
            return drafted
        old.replace(rows, drafted)
        return old

    def observe(self, result: StepResult) -> None:
        if self._trees is not None and not self._trees.advance(result.accepted, result.last):
            self._trees = None

    def keep(self, rows: list[int], width: int) -> None:
        super().keep(rows, width)
        if self._trees is not None:
            self._trees.keep(rows)


def prefixes_of(batch: Batch, causal: bool, slots: int, rows: list[int] | None = None) -> Prefixes:
    """Return the prefixes of a batch, which blocks of ``slots`` are to follow.

    Args:
        causal: the drafter has cached earlier tokens.
        rows: those to draft for; None for all.
    """
    new, lengths, last = batch.uncached if causal else batch.lengths, batch.lengths, batch.last
    blocks = None
    if min(batch.draft_lengths) < slots:
        blocks = [min(max(length, 1), slots) for length in batch.draft_lengths]
    if rows is not None:
        new, lengths = [new[i] for i in rows], [lengths[i] for i in rows]
        blocks = None if blocks is None else [blocks[i] for i in rows]
        last = last[torch.tensor(rows, device=batch.device)]
    # After the EOS that every row begins with.
    return Prefixes(batch.tokens[:, 1:], new, lengths, last, batch.features, blocks, rows)
