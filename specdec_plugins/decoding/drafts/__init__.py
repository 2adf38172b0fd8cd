"""Drafted tokens of every row: chains and trees. No fairseq in here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.decoding.acceptance.sampling import Proposal
from specdec_plugins.decoding.acceptance.verification import Links, chain_links
from specdec_plugins.decoding.drafts.growth import Trees
from specdec_plugins.decoding.kernels import Floats, on_host


@dataclass(frozen=True)
class ChainDraft:
    """Tokens that the drafter chose or drew, slot by slot."""

    #: ``(rows, slots)``; a row's are the first of them.
    tokens: Tensor
    #: The number of each row's tokens.
    drafted: list[int]
    #: ``(rows, slots, channels)`` the drafter's states that tokens were chosen from.
    states: Tensor
    #: ``(rows, slots)`` float32 the drafter's probability of each token; empty if nobody reads it.
    confidences: Tensor
    #: The distributions that tokens were drawn from; None: they were chosen.
    proposal: Proposal | None = None
    #: The drafter's passes for each row; None: one, where there are tokens.
    passes: Sequence[int] | None = None

    @classmethod
    @lru_cache(maxsize=512)
    def empty(cls, rows: int, device: torch.device) -> ChainDraft:
        """Return a draft of nothing, after which a step commits the verifier's next token."""
        with torch.inference_mode(False):
            nothing = torch.zeros(rows, 0, device=device)
        return cls(nothing.long(), [0] * rows, nothing[..., None], nothing)

    @classmethod
    def of(cls, tokens: Tensor) -> ChainDraft:
        """Return a draft of ``tokens`` ``(rows, slots)`` without states or probabilities."""
        rows, slots = tokens.shape
        return replace(cls.empty(rows, tokens.device), tokens=tokens, drafted=[slots] * rows)

    @property
    def called(self) -> Sequence[int]:
        """The drafter's passes for each row."""
        if self.passes is not None:
            return self.passes
        return [self.tokens.size(1) > 0] * len(self.drafted)

    @property
    def links(self) -> Links:
        """Each token comes after the one before it."""
        return chain_links(self.tokens.size(1), self.tokens.device)

    def cut(self, lengths: list[int]) -> ChainDraft:
        """Return the part to verify, where a controller asks for so many tokens of each row.

        Of drawn tokens it is one more: leaving out a token must not depend on which token it is,
        and the token at which a controller cuts made it cut.
        """
        more = 0 if self.proposal is None else 1
        drafted = [min(n + more, count) for n, count in zip(lengths, self.drafted)]
        return replace(self, tokens=self.tokens[:, : max(drafted)], drafted=drafted)

    def chances(self) -> list[list[float]]:
        """Return the drafter's probability of each token, for a trace."""
        return list(self.confidences.tolist())


@dataclass(frozen=True)
class TreeDraft:
    """Drafted tokens by probability, as a tree.

    Node 0 is the root, the last committed token; node i > 0 holds drafted token i - 1. Every node's
    parent comes before it, and none is an EOS's.
    """

    #: ``(rows, nodes)``; ``pad``, which is never accepted, fills up.
    tokens: Tensor
    links: Links
    #: ``(rows, nodes + 1)`` the drafter's log-probability of the path to each node, on the host;
    #: minus infinity where ``pad`` fills up.
    gains: Floats
    drafted: list[int]
    called: Sequence[int]
    #: Tokens of trees are chosen.
    proposal: None = None

    @classmethod
    def of(
        cls, trees: Trees, lengths: list[int], called: Sequence[int], device: torch.device
    ) -> TreeDraft:
        """Return trees of ``lengths`` nodes that the host has grown."""
        *arrays, gains, _ = trees
        tokens, after, depths, ancestors = (torch.from_numpy(x).to(device) for x in arrays)
        return cls(tokens, Links(after, depths, ancestors, tokens.size(1)), gains, lengths, called)

    def cut(self, lengths: list[int]) -> TreeDraft:
        """Return the whole tree: its size is decided before it is grown."""
        return self

    def chances(self) -> list[list[float]]:
        before = np.take_along_axis(self.gains, on_host(self.links.after), axis=1)
        conditional = self.gains[:, 1:] - before
        return list(np.exp(conditional).tolist())


#: The attributes that a verifier reads are alike.
Draft = ChainDraft | TreeDraft
