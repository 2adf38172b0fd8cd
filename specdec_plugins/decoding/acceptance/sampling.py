"""Drawing tokens, and lossless acceptance of drawn drafts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def tempered(scores: Tensor, temperature: float = 1.0) -> Tensor:
    """Return ``(…, tokens)`` scores divided by ``temperature``, up to a constant."""
    if temperature == 1.0:
        return scores
    # Minus the best, so that no score can become infinity.
    return (scores - scores.amax(-1, keepdim=True)) / temperature


def log_probabilities(scores: Tensor, temperature: float = 1.0) -> Tensor:
    """Return ``(…, tokens)`` the log-softmax of scores divided by ``temperature``."""
    return tempered(scores, temperature).log_softmax(-1)


def truncated(lprobs: Tensor, topk: int, topp: float) -> Tensor:
    """Return ``(…, vocab)`` probabilities to draw by, from log-probabilities.

    Forbidden tokens have minus infinity. As in fairseq, the rest need not add up to one where
    ``topp`` is applied; what ``topk`` left does.

    Args:
        topk: draw from the k most probable tokens only; 0 or below: from all.
        topp: then, from the fewest most probable tokens that together have this probability
            (Holtzman et al., ICLR 2020), after ``topk`` as in Transformers; 0 or below: from all.
    """
    if topk > 0:
        best = lprobs.topk(min(topk, lprobs.size(-1)), dim=-1).indices
        among = torch.zeros_like(lprobs, dtype=torch.bool).scatter_(-1, best, True)
        lprobs = lprobs.masked_fill(~among, -torch.inf)
    if 0 < topp < 1:
        shares = lprobs.softmax(-1) if topk > 0 else lprobs.exp()
        ordered, order = shares.sort(dim=-1, descending=True)
        # The sum before each token: the token that reaches ``topp`` is among them.
        before = ordered.cumsum(-1).roll(1, -1)
        before[..., 0] = 0
        dropped = torch.zeros_like(lprobs, dtype=torch.bool).scatter_(-1, order, before >= topp)
        lprobs = lprobs.masked_fill(dropped, -torch.inf)
    return lprobs.softmax(-1)


def draw(probabilities: Tensor) -> Tensor:
    """Return ``(…)`` tokens, each drawn by ``(…, vocab)`` probabilities of any sum."""
    # By the inverse of the distribution function: torch.multinomial takes ten times as long. In
    # float64: float32 has no numbers for the rare tokens of a large vocabulary.
    sums = probabilities.cumsum(-1, dtype=torch.float64)
    total = sums[..., -1:].contiguous()
    below = torch.rand_like(total) * total
    # A token with a probability, also where ``below`` is rounded to the total, or all are NaN.
    last = torch.searchsorted(sums, total).clamp(max=sums.size(-1) - 1)
    return torch.minimum(torch.searchsorted(sums, below, right=True), last)[..., 0]


@dataclass(frozen=True)
class Proposal:
    """The distributions that a chain's tokens were drawn from, each after the one before it."""

    #: ``(rows, slots, candidates)`` the tokens that each slot could hold.
    candidates: Tensor
    #: ``(rows, slots, candidates)`` their probabilities.
    probabilities: Tensor
    #: ``(rows, slots)`` the probabilities of the drawn tokens.
    drawn: Tensor


def leading(good: Tensor) -> Tensor:
    """Return ``(rows,)`` how many of each row of ``(rows, slots)`` are True before one is not."""
    return good.long().cumprod(-1).sum(-1)


def accepts(p: Tensor, q: Tensor) -> Tensor:
    """Return True with probability min(1, p / q), each independently."""
    # As a product, since a ratio in low precision may have no denominator.
    return torch.rand_like(p) * q < p


def speculative_sampling(
    probabilities: Tensor, drafted: Tensor, proposal: Proposal, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Accept drawn tokens such that what is committed is distributed as if the verifier drew it.

    A token x that was drawn with probability q(x) is accepted with probability min(1, p(x) / q(x)).
    In place of the first that is not, one is drawn from max(0, p - q), normalised; after the last
    one, from p (Leviathan et al., ICML 2023, algorithm 1; Chen et al., 2023, algorithm 2).

    Args:
        probabilities: ``(rows, slots + 1, vocab)`` the verifier's, p.
        drafted: ``(rows, slots)`` drawn tokens, or the first slots of them; at least one.
        proposal: q, of as many slots or more.
        lengths: ``(rows,)`` the slots of each row; None: all. Leaving out a token must not depend
            on which token it is.

    Returns:
        ``(rows,)`` the number of accepted tokens, and ``(rows, 1)`` the token after them.
    """
    end: Tensor | int = drafted.size(1)
    last = drafted.size(1) - 1
    wanted = probabilities[:, :-1].gather(-1, drafted[..., None])[..., 0]  # (rows, slots)
    accepted = leading(accepts(wanted, proposal.drawn[:, : last + 1]))
    if lengths is not None:
        accepted = torch.minimum(accepted, lengths)
        end = lengths
    # The slot after the accepted ones, of which a row without a rejected token has none.
    slot = accepted[:, None, None]
    rejected = (accepted < end)[:, None]
    p = probabilities.take_along_dim(slot, 1)[:, 0]  # (rows, vocab)
    slot = slot.clamp(max=last)
    q = proposal.probabilities.take_along_dim(slot, 1)[:, 0] * rejected  # (rows, candidates)
    candidates = proposal.candidates.take_along_dim(slot, 1)[:, 0]
    left = p.scatter_add(1, candidates, -q.to(p.dtype)).clamp(min=0)
    # Rounding may leave nothing where p and q are the same.
    is_left = left.sum(-1, keepdim=True) > 0
    return accepted, draw(torch.where(is_left, left, p))[:, None]
