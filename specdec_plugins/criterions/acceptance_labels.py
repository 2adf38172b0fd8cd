"""An acceptance head's labels: the drafted tokens that the verifier accepts after prefixes.

The frozen pair drafts and verifies as in decoding, but the prefixes are those of targets.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_plugins.decoding.acceptance import Scoring
from specdec_plugins.decoding.acceptance.verification import Verification
from specdec_plugins.decoding.batch import Prefixes
from specdec_plugins.decoding.drafting import chosen_draft
from specdec_plugins.decoding.drafts import ChainDraft
from specdec_plugins.decoding.limits import GenerationLimits, TokenBans
from specdec_plugins.decoding.steps.drafter import CachedDrafter
from specdec_plugins.decoding.steps.verifier import CachedVerifier
from specdec_plugins.host.fairseq_types import NetInput
from specdec_plugins.models.drafter import Drafter


@dataclass(frozen=True)
class LabelledBlocks:
    """Drafted blocks and what became of them, ``(batch, blocks, …)``."""

    eos: int
    #: ``(batch, blocks)`` prefix lengths, the longest first.
    cuts: Tensor
    #: ``(batch, blocks, slots, channels)`` the drafter's last states.
    states: Tensor
    #: ``(batch, blocks, slots)`` the drafter's probability of each token that it chose.
    confidences: Tensor
    #: ``(batch, blocks, slots)`` those tokens.
    draft: Tensor
    #: ``(batch, blocks)`` the number of them that would be committed; none after an EOS.
    accepted: Tensor
    #: ``(batch, blocks, slots)`` the probability that a token is accepted if all before it are:
    #: min(1, p / q) for drawn tokens; else 1 or 0, and 0 after the first rejection.
    chances: Tensor

    @property
    def survived(self) -> Tensor:
        """``(batch, blocks, slots)`` True where the token and all before it are accepted."""
        slots = torch.arange(self.draft.size(-1), device=self.draft.device)
        return slots < self.accepted[..., None]

    @property
    def open(self) -> Tensor:
        """``(batch, blocks, slots)`` False after an accepted EOS: there is nothing to decide."""
        ends = (self.survived & (self.draft == self.eos)).long()
        return ends.cumsum(-1) == ends

    @property
    def decided(self) -> Tensor:
        """``(batch, blocks, slots)`` True where all tokens before are accepted: only these slots
        have a label."""
        before = self.survived[..., :-1]
        return F.pad(before, (1, 0), value=True) & self.open

    @property
    def reached(self) -> Tensor:
        """``(batch, blocks, slots)`` the probability that a slot of this draft is decided."""
        chances = torch.where(self.draft == self.eos, 0.0, self.chances)
        before = chances[..., :-1].cumprod(-1)
        return F.pad(before, (1, 0), value=1.0)


class AcceptanceLabeller:
    """Drafts and verifies blocks of given targets; both models, which are a pair, are frozen."""

    def __init__(self, drafter: Drafter, scoring: Scoring, block_size: int) -> None:
        verifier = drafter.verifier
        words = verifier.decoder.dictionary
        self.block_size = block_size
        self.padding = words.pad()
        self.eos = drafter.eos
        self.drafter = CachedDrafter(drafter)
        self.verifier = CachedVerifier(verifier, self.padding, None, drafter.feature_layers)
        self.scoring = scoring
        self.rule = scoring.rule
        # As when decoding with fairseq's default limits.
        self._bans = TokenBans(GenerationLimits(), self.padding, words.unk(), self.eos)

    @torch.no_grad()
    def __call__(
        self,
        net_input: NetInput,
        target: Tensor,
        cuts: Tensor,
        seeds: Tensor,
    ) -> LabelledBlocks:
        """Draft and verify a block after every cut.

        Args:
            target: ``(batch, length)`` tokens of the prefixes, best the verifier's own output;
                right-padded.
            cuts: ``(batch, blocks)`` prefix lengths, below the target's length.
            seeds: ``(batch,)``; sampling draws by the first one.
        """
        cuts = cuts.sort(1, descending=True).values
        before = F.pad(target[:, :-1], (1, 0), value=self.drafter.model.begin)
        self._read(net_input, target, before)
        devices = [cuts.device] if cuts.is_cuda else []
        # Afterwards torch's generators go on as if nothing had been drawn.
        with torch.random.fork_rng(devices, enabled=self.rule.draws):
            if self.rule.draws:
                torch.manual_seed(int(seeds[0]))
            blocks = [self._block(target, before, cut) for cut in cuts.unbind(1)]
        return LabelledBlocks(self.eos, cuts, *(torch.stack(part, 1) for part in zip(*blocks)))

    def _read(self, net_input: NetInput, target: Tensor, before: Tensor) -> None:
        """Fill the caches with the whole targets."""
        encoder_out = self.verifier.encode(net_input["src_tokens"], net_input["src_lengths"])
        rows, length = target.shape
        capacity = 2 * length + self.block_size + 1
        self.verifier.begin(encoder_out, capacity)
        self.drafter.start(net_input, encoder_out, capacity)
        first = before[:, 0].tolist()
        # In an empty cache the tokens are where they belong.
        _, features, _ = self.verifier.score(first, ChainDraft.of(before[:, 1:]), [0] * rows)
        if self.drafter.causal:
            # States of prefix slots do not depend on the block that is drafted here in passing.
            known = target.ne(self.padding).sum(1).tolist()
            last = [self.eos] * rows  # of a block that nobody looks at
            self.drafter.draft(Prefixes(target.tolist(), known, known, last, features), 1)

    def _block(self, target: Tensor, before: Tensor, cut: Tensor) -> tuple[Tensor, ...]:
        """Label the block after each row's cut; return fields of :class:`LabelledBlocks`."""
        tokens_before = before.gather(1, cut[:, None])
        last = tokens_before[:, 0].tolist()
        cuts = cut.tolist()
        new = [0] * len(cuts) if self.drafter.causal else cuts
        states, scores = self.drafter.draft(
            Prefixes(target.tolist(), new, cuts, last, None), self.block_size
        )
        scoring = self.scoring if self.rule.draws else None
        draft = chosen_draft([self.block_size] * len(cuts), states, scores, scoring)
        logits, *_ = self.verifier.score(last, draft, cuts)
        logits, normalisers = self.scoring.changed(
            logits, target[:, : max(cuts)], cut, draft.tokens, draft.links.ancestors
        )
        self._bans.apply(logits, cut[:, None] + draft.links.depths, None)
        verification = Verification(logits, self.eos, normalisers)
        counts = self.rule.accept(draft, verification).accepted
        accepted = torch.tensor(counts, device=cut.device)
        slots = torch.arange(self.block_size, device=accepted.device)
        chances = (slots < accepted.unsqueeze(1)).to(draft.confidences.dtype)
        if self.rule.draws:
            after = draft.links.after.expand_as(draft.tokens)
            p = self.rule.probabilities_of(verification, draft.tokens, after)
            chances = (p / draft.confidences).clamp(max=1)
        return states, draft.confidences, draft.tokens, accepted, chances
