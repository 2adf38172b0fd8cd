"""Score drafts with the verifier."""

from __future__ import annotations

from torch import Tensor

from specdec_plugins.decoding.acceptance import Scoring, Verification
from specdec_plugins.decoding.batch import Batch
from specdec_plugins.decoding.drafts import Draft
from specdec_plugins.decoding.limits import TokenBans
from specdec_plugins.decoding.steps.verifier import CachedVerifier


class Scorer:
    """The verifier's scores, changed by the options of generation."""

    def __init__(self, verifier: CachedVerifier, scoring: Scoring, bans: TokenBans) -> None:
        self.verifier, self._scoring, self._bans = verifier, scoring, bans

    def score(self, batch: Batch, draft: Draft) -> tuple[Verification, Tensor]:
        """Return what the verifier says of a draft, and its states ``(rows, slots, channels)``."""
        scored = self.verifier.score(batch.last, draft, batch.lengths)
        scores, normalisers = scored.logits, scored.normalisers
        if self._scoring.changes:
            committed = batch.tokens[:, 1 : max(batch.lengths) + 1], batch.on_device.lengths
            drafted = draft.tokens, draft.ancestors
            scores, normalisers = self._scoring.changed(scores, *committed, *drafted)
        bans, depths = self._bans, draft.depths
        early = min(batch.lengths) < bans.limits.min_len
        full = batch.room(depths.size(-1)) is not None
        positions = longest = None
        if early or full:
            counts = batch.on_device
            positions = counts.lengths[:, None] + depths
            longest = counts.max_lengths if full else None
        bans.apply(scores, positions, longest, early, free_from=batch.free_from)
        return Verification(scores, bans.eos, normalisers), scored.states
