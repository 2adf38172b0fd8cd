"""The loop of speculative decoding: draft, verify, accept, commit, select. No fairseq in here."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from specdec_plugins.decoding.acceptance import Accepted, Scoring, Verification
from specdec_plugins.decoding.batch import Batch
from specdec_plugins.decoding.controllers.base import Controller
from specdec_plugins.decoding.drafting import Drafting
from specdec_plugins.decoding.drafts import ChainDraft, Draft
from specdec_plugins.decoding.kernels import to_device
from specdec_plugins.decoding.limits import TokenBans
from specdec_plugins.decoding.statistics import Clock
from specdec_plugins.decoding.step_result import Judgement, StepResult
from specdec_plugins.decoding.steps.verifier import CachedVerifier


class Loop:
    """Decodes batches, one step after another, by a verifier, a scoring and limits."""

    def __init__(
        self, verifier: CachedVerifier, scoring: Scoring, bans: TokenBans, reads_states: bool
    ) -> None:
        """``reads_states``: the drafter reads the verifier's states of committed tokens."""
        self.verifier = verifier
        self.scoring = scoring
        self.bans = bans
        self._reads_states = reads_states

    def steps(
        self,
        batch: Batch,
        drafting: Drafting,
        controller: Controller,
        clock: Clock,
        judges: bool = False,
    ) -> Iterator[tuple[StepResult, Judgement | None]]:
        """Yield what each step commits, until all rows have ended.

        For the draft ``a b c``, of which the verifier would write ``a b d``, a step commits
        ``a b d``. Rows that have ended are dropped after their last result was yielded.

        Args:
            batch: has read its sources; its forced tokens are committed.
            clock: is told which phase of a step begins and ends.
            judges: yield each draft, too, with the verifier's view of it.
        """
        rule = self.scoring.rule
        while batch.rows:
            with clock.phase("draft"):
                draft = drafting.draft(batch)
            with clock.phase("control"):
                verified = controller.cut(draft)
            with clock.phase("verify"):
                verification, states = self._verify(batch, verified)

            accepted = rule.accept(verified, verification)
            result = self._commit(batch, draft, accepted, verification, states)
            judgement = None
            if judges:
                judgement = Judgement(draft, verified, rule, verification, controller.p_acc)
            yield result, judgement  # whose reader may end rows

            drafting.observe(result)
            with clock.phase("control"):
                batch.plan(controller.next_lengths(result))
            if any(result.finished):
                batch.select(result.kept)
                if batch.rows:
                    width = max(batch.lengths)
                    self.verifier.select(result.kept, width)
                    drafting.select(result.kept, width)

    def commit_forced(self, batch: Batch) -> None:
        """Commit forced tokens by one pass of the verifier; the last is read with the draft."""
        verification, states = self._verify(batch, ChainDraft.of(batch.prefix[:, :-1]))
        self._commit(
            batch,
            ChainDraft.empty(len(batch.rows), batch.device),
            batch.forced_tokens(),
            verification,
            states,
        )

    def _verify(self, batch: Batch, draft: Draft) -> tuple[Verification, Tensor]:
        """Return the verifier's scores of a draft, and its states ``(rows, slots, channels)``."""
        eos = self.bans.eos
        scores, states, normalisers = self.verifier.score(batch.last, draft, batch.lengths)
        if self.scoring.changes:
            width = max(batch.lengths)
            padded = [tokens + [eos] * (width - len(tokens)) for tokens in batch.tokens]
            scores, normalisers = self.scoring.changed(
                scores,
                to_device(padded, batch.device),
                batch.on_device[0],
                draft.tokens,
                draft.links.ancestors,
            )
        depths = draft.links.depths
        positions = max_lengths = free_from = None
        full = min(batch.room) < depths.size(-1)
        if full or min(batch.lengths) < self.bans.limits.min_len:
            lengths, limits = batch.on_device
            positions = lengths[:, None] + depths
            if full:
                max_lengths = limits
            free_from = to_device(batch.free_from, batch.device)
        self.bans.apply(scores, positions, max_lengths, free_from)
        return Verification(scores, eos, normalisers), states

    def _commit(
        self,
        batch: Batch,
        draft: Draft,
        accepted: Accepted,
        verification: Verification,
        states: Tensor,
    ) -> StepResult:
        """Append what was accepted: tokens, scores, keys and values, states for the drafter."""
        self.verifier.cache.write(accepted.sources, batch.lengths, accepted.committed)
        scores = verification.of(accepted.tokens, accepted.sources)
        return batch.commit(draft, accepted, scores, states if self._reads_states else None)
