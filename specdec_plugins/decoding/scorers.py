"""Who says what a draft is worth: the verifier, or nobody."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from specdec_plugins.decoding.acceptance import Accepted, Scoring, Verification
from specdec_plugins.decoding.batch import Batch
from specdec_plugins.decoding.drafts import Draft, SelfScoredDraft
from specdec_plugins.decoding.limits import TokenBans
from specdec_plugins.decoding.steps.verifier import CachedVerifier
from specdec_plugins.host.fairseq_types import EncoderOut, NetInput

Scores = Callable[[Tensor, Tensor], Tensor]
"""``(rows, n)`` log-probabilities of tokens, each after a token that was read."""


class VerifierScorer:
    """The verifier, with what fairseq's options forbid."""

    def __init__(self, verifier: CachedVerifier, scoring: Scoring, bans: TokenBans) -> None:
        self.verifier = verifier
        self._scoring = scoring
        self._bans = bans

    def encode(self, net_input: NetInput) -> EncoderOut:
        """Return the verifier's encoder output."""
        return self.verifier.encode(net_input["src_tokens"], net_input["src_lengths"])

    def start(self, encoder_out: EncoderOut | None, capacity: int) -> None:
        """Begin a batch, rows of which hold at most ``capacity`` tokens, drafts included."""
        assert encoder_out is not None
        self.verifier.start(encoder_out, capacity)

    def commit(self, accepted: Accepted, batch: Batch) -> None:
        """Keep what was accepted of the draft scored last, before the batch does."""
        self.verifier.commit(accepted, batch.lengths)

    def keep(self, rows: list[int], width: int) -> None:
        """Go on with ``rows`` only."""
        self.verifier.keep(rows, width)

    def read(self, batch: Batch, forced: Draft) -> tuple[Scores, Tensor]:
        """Read what is forced but for its last token, which comes before the next draft; returns
        how log-probabilities are found, and the verifier's states."""
        verification, states = self.score(batch, forced)
        return verification.of, states

    def score(self, batch: Batch, draft: Draft) -> tuple[Verification, Tensor]:
        """Scores of a draft, and the verifier's states ``(rows, slots, channels)``."""
        scored = self.verifier.score(batch.last, draft, batch.lengths)
        scores, normalisers = scored.logits, scored.normalisers
        if self._scoring.changes:
            committed = batch.tokens[:, 1 : max(batch.lengths) + 1], batch.on_device.lengths
            drafted = draft.tokens, draft.ancestors
            scores, normalisers = self._scoring.changed(scores, *committed, *drafted)
        verification = verification_of(scores, normalisers, batch, draft.depths, self._bans)
        return verification, scored.states


def verification_of(
    scores: Tensor, normalisers: Tensor, batch: Batch, depths: Tensor, bans: TokenBans
) -> Verification:
    """Return what is said by scores ``(rows, slots, vocab)``, in which what fairseq's options
    forbid is changed in place.

    Args:
        normalisers: as of a :class:`Verification`.
        depths: ``(slots,)`` or ``(rows, slots)`` how far from the last committed token each stands.
    """
    early = min(batch.lengths) < bans.limits.min_len
    full = batch.room(depths.size(-1)) is not None
    positions = most = None
    if early or full:
        there = batch.on_device
        positions, most = there.lengths[:, None] + depths, there.max_lengths if full else None
    bans.apply(scores, positions, most, early, free_from=batch.free_from)
    return Verification(scores, bans.eos, normalisers)


class NoScorer:
    """Nobody: drafts come with the drafter's own scores. Methods as of :class:`VerifierScorer`.

    A verifier is run only where the drafter reads its encoder or its states; what is forced has
    log-probability 0.
    """

    def __init__(self, encoder: CachedVerifier | None, features: CachedVerifier | None) -> None:
        """
        Args:
            encoder: the verifier whose encoder the drafter shares.
            features: the verifier whose states it reads.
        """
        self._encoder = encoder or features
        self._features = features

    def encode(self, net_input: NetInput) -> EncoderOut | None:
        if self._encoder is None:
            return None
        return self._encoder.encode(net_input["src_tokens"], net_input["src_lengths"])

    def start(self, encoder_out: EncoderOut | None, capacity: int) -> None:
        if self._features is not None:
            assert encoder_out is not None
            self._features.start(encoder_out, capacity)

    def read(self, batch: Batch, forced: Draft) -> tuple[Scores, Tensor | None]:
        states = None
        if self._features is not None:
            states = self._features.score(batch.last, forced, batch.lengths).states
        return lambda tokens, sources: torch.zeros_like(tokens, dtype=batch.scores.dtype), states

    def score(self, batch: Batch, draft: Draft) -> tuple[Verification, Tensor | None]:
        assert isinstance(draft, SelfScoredDraft)
        states = None
        if self._features is not None:
            # The last token is not read yet.
            read = replace(draft, tokens=draft.tokens[:, :-1])
            states = self._features.score(batch.last, read, batch.lengths).states
        return draft.verification, states

    def commit(self, accepted: Accepted, batch: Batch) -> None:
        if self._features is not None:
            self._features.commit(accepted, batch.lengths)

    def keep(self, rows: list[int], width: int) -> None:
        if self._features is not None:
            self._features.keep(rows, width)


Scorer = VerifierScorer | NoScorer
