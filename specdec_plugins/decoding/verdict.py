"""What a step commits: what is accepted of a draft, and one token of the verifier's. No fairseq."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specdec_plugins.decoding.acceptance import AcceptanceRule
from specdec_plugins.decoding.draft_tree import DraftTree, Path
from specdec_plugins.decoding.indices import indices
from specdec_plugins.decoding.probabilities import Proposal, speculative_sampling


@dataclass(frozen=True)
class Verdict:
    """Of every row, the tokens to commit: accepted ones, then the verifier's own, up to EOS."""

    tokens: Tensor
    """``(rows, slots)`` these, then whatever."""
    sources: Tensor
    """``(slots,)`` of all rows, or ``(rows, slots)``: which of the tokens that the verifier read
    comes before each."""
    new: Tensor
    """``(rows,)`` how many are committed."""
    accepted: Tensor
    """``(rows,)`` how many of them were drafted; without an EOS that the length limit forces."""
    finished: Tensor
    """``(rows,)`` 1 where the last of them is EOS, else 0."""
    path: Path | None = None
    """The way through a tree."""
    known: list[list[int]] | None = None
    """``new``, ``accepted`` and ``finished`` on the host, where they are known there."""


def judge(
    rule: AcceptanceRule,
    lprobs: Tensor,
    inputs: Tensor,
    limits: Tensor | None,
    eos: int,
    tree: DraftTree | None,
    proposal: Proposal | None = None,
    room: list[int] | None = None,
) -> Verdict:
    """The longest good prefix of every row's draft, or the way that :meth:`DraftTree.follow` takes.

    Args:
        lprobs: ``(rows, slots + 1, vocab)`` the verifier's log-probabilities after each input.
        inputs: ``(rows, slots + 1)`` the last committed token, then the draft.
        limits: ``(rows,)`` how much of the draft is each row's; None for all.
        tree: how the draft hangs together; None where each token follows the one before it.
        proposal: what it was drawn from, if the rule is sampling; None where it was chosen.
        room: of each row, the tokens that it may still have before an EOS is forced on it; None
            where no draft reaches as far.
    """
    drafted = inputs[:, 1:]
    if proposal is not None:
        assert rule.sampling is not None
        p = rule.sampling.probabilities(lprobs)
        return _verdict(drafted, *speculative_sampling(p, drafted, proposal, limits), eos, room)
    best = rule.own(lprobs)
    if tree is not None:
        good = rule.agrees(lprobs, best, drafted, tree.parents)
        path = tree.follow(good, best, eos, limits, room)
        new, accepted, finished = path.counts
        return Verdict(path.tokens, path.nodes, new, accepted, finished, path, path.host_counts)
    matched = rule.accepted(lprobs[:, :-1], best[:, :-1], drafted)
    if limits is not None:
        matched = torch.minimum(matched, limits)
    return _verdict(drafted, matched, best, eos, room)


def _verdict(
    drafted: Tensor, matched: Tensor, own: Tensor, eos: int, room: list[int] | None
) -> Verdict:
    """Of ``(rows,)`` tokens that are ``matched``, those up to EOS, and the verifier's own after
    them: ``(rows, slots + 1)`` of every place, or ``(rows, 1)`` of the only one that counts."""
    slots = indices(drafted.size(1) + 1, drafted.device)
    bound = matched[:, None]
    tokens = torch.where(slots < bound, torch.cat([drafted, own[:, -1:]], dim=1), own)
    ends = (tokens == eos) & (slots <= bound)
    new = torch.where(ends, slots, bound).amin(1) + 1
    accepted = torch.minimum(matched, new)
    if room is not None:
        accepted = torch.minimum(accepted, torch.tensor(room, device=new.device))
    return Verdict(tokens, slots, new, accepted, ends.any(1).long())
