"""Which drafted tokens the verifier accepts after given prefixes: an acceptance head's labels.

The frozen pair does what it does at decoding time, on prefixes that are given instead of decoded:
the drafted tokens are the drafter's own, and the rule is the one that decides when decoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specdec_plugins.decoding.acceptance import AcceptanceRule
from specdec_plugins.decoding.batch import Prefixes
from specdec_plugins.decoding.drafter import CachedDrafter
from specdec_plugins.decoding.limits import GenerationLimits, TokenBans
from specdec_plugins.decoding.probabilities import log_probabilities
from specdec_plugins.decoding.verdict import judge
from specdec_plugins.decoding.verifier import CachedVerifier
from specdec_plugins.models.drafter import Drafter


@dataclass(frozen=True)
class LabelledBlocks:
    """Drafted blocks and what became of them, ``(batch, blocks, …)``."""

    cuts: Tensor
    """``(batch, blocks)`` prefix lengths, the longest first."""
    states: Tensor
    """``(batch, blocks, slots, channels)`` the drafter's last states."""
    confidences: Tensor
    """``(batch, blocks, slots)`` the drafter's probability of each token that it chose."""
    draft: Tensor
    """``(batch, blocks, slots)`` those tokens."""
    accepted: Tensor
    """``(batch, blocks)`` how many of them would be committed; none after an EOS."""
    eos: int

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
        """``(batch, blocks, slots)`` True where all tokens before are accepted: the slots whose
        acceptance is a label. Those after the first rejection have none.
        """
        slots = torch.arange(self.draft.size(-1), device=self.draft.device)
        return (slots <= self.accepted[..., None]) & self.open


class AcceptanceLabeller:
    """Drafts and verifies blocks of given targets; both models are frozen."""

    def __init__(
        self,
        drafter: Drafter,
        verifier: Any,
        rule: AcceptanceRule,
        block_size: int,
        padding: int,
        temperature: float = 1.0,
    ) -> None:
        """``temperature`` is what the verifier's scores are divided by, as when decoding."""
        drafter.attach_verifier(verifier)
        self.drafter = CachedDrafter(drafter.eval())
        verifier.eval()
        self.verifier = CachedVerifier(verifier, padding)
        self.rule = rule
        self.block_size = block_size
        self.padding = padding
        self.eos = drafter.eos
        unk = verifier.decoder.dictionary.unk()
        # As when decoding with fairseq's default limits.
        self._limits = GenerationLimits(temperature=temperature)
        self._bans = TokenBans(self._limits, padding, unk, self.eos)
        self._propose = rule.proposer(temperature)

    @torch.no_grad()
    def __call__(
        self,
        net_input: dict[str, Tensor],
        target: Tensor,
        cuts: Tensor,
        seeds: Tensor | None = None,
    ) -> LabelledBlocks:
        """Draft and verify a block after every cut.

        Args:
            net_input: ``src_tokens`` ``(batch, source)`` and ``src_lengths``.
            target: ``(batch, length)`` the prefixes come from here, best the verifier's own output;
                right-padded.
            cuts: ``(batch, blocks)`` prefix lengths, below the target's length.
            seeds: ``(batch,)``; if the rule is sampling, the first one is that of all draws. None:
                torch's generators draw on.
        """
        with self._drawing_by(seeds):
            return self._label(net_input, target, cuts)

    @contextmanager
    def _drawing_by(self, seeds: Tensor | None) -> Iterator[None]:
        """Torch's generators begin anew, and go on afterwards as if nothing had been drawn."""
        if self.rule.sampling is None or seeds is None:
            yield
            return
        device = seeds.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(int(seeds[0]))
            yield

    def _label(self, net_input: dict[str, Tensor], target: Tensor, cuts: Tensor) -> LabelledBlocks:
        # Each block overwrites the caches after its cut, so the longest prefix comes first.
        cuts = cuts.sort(1, descending=True).values
        before = torch.cat([torch.full_like(target[:, :1], self.eos), target[:, :-1]], dim=1)
        self._read(net_input, target, before)
        blocks = [self._block(target, before, cut) for cut in cuts.unbind(1)]
        states, confidences, draft, accepted = (torch.stack(part, 1) for part in zip(*blocks))
        return LabelledBlocks(cuts, states, confidences, draft, accepted, self.eos)

    def _read(self, net_input: dict[str, Tensor], target: Tensor, before: Tensor) -> None:
        """Fill the caches with the whole targets."""
        source, source_lengths = net_input["src_tokens"], net_input["src_lengths"]
        encoder_out = self.verifier.encode(source, source_lengths)
        length = target.size(1)
        capacity = length + self.block_size + 1
        self.verifier.start(encoder_out, capacity)
        self.drafter.start(self.drafter.encode(net_input, encoder_out), capacity)
        none = source.new_zeros(len(source))
        _, features = self.verifier.score(before, none, length)
        if self.drafter.causal:
            # States of prefix slots do not depend on the block that is drafted here in passing.
            lengths = target.ne(self.padding).sum(1)
            self.drafter.states(Prefixes(target, lengths, lengths, length, features), 1)

    def _block(self, target: Tensor, before: Tensor, cut: Tensor) -> tuple[Tensor, ...]:
        """States, confidences, tokens and accepted counts of the block after each row's cut."""
        k, length = self.block_size, target.size(1)
        last = before.gather(1, cut[:, None])
        if self.drafter.causal:
            prefix, new = target[:, :0], torch.zeros_like(cut)
        else:
            prefix, new = target, cut
        states = self.drafter.states(Prefixes(prefix, new, cut, length, None), k)
        draft = self.drafter.chain(states, last[:, 0], True, self._propose)
        assert draft.probabilities is not None
        inputs = torch.cat([last, draft.tokens], dim=1)
        logits, _ = self.verifier.score(inputs, cut, length + k + 1)
        precision = torch.promote_types(logits.dtype, torch.float32)
        lprobs = log_probabilities(logits, self._limits.temperature, precision)
        slots = torch.arange(k + 1, device=cut.device)
        self._bans.apply(lprobs, cut[:, None] + slots, None)
        verdict = judge(self.rule, lprobs, inputs, None, self.eos, None, draft.proposal)
        return states, draft.probabilities, draft.tokens, verdict.accepted
