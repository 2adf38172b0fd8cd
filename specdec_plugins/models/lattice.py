"""Scores of a block's slots: of every slot alone, or of pairs of neighbours. No fairseq in here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec_plugins.models.layers import Projection, projection

#: The most candidates of a slot.
CANDIDATES = 16


def in_vocabulary(indices: Tensor, vocabulary: Tensor | None) -> Tensor:
    """Return the tokens of indices ``(…)`` in a draft vocabulary ``(n,)``; None: all tokens."""
    return indices if vocabulary is None else vocabulary[indices]


@dataclass(frozen=True)
class SlotLogits:
    """Scores of each slot's tokens, whatever the other slots hold."""

    #: ``(rows, slots, n)``, float32, of the draft vocabulary; of all tokens pad's is so low that it
    #: is never chosen.
    logits: Tensor
    #: ``(n,)`` the draft vocabulary; None: all tokens.
    vocabulary: Tensor | None = None

    def choose(self) -> Tensor:
        """Return ``(rows, slots)`` the best tokens."""
        return in_vocabulary(self.logits.argmax(-1), self.vocabulary)

    def choose_with_confidence(self) -> tuple[Tensor, Tensor]:
        """Return the best tokens, and their probabilities ``(rows, slots)`` in float32."""
        # Not the best of the softmax, in which two scores may be rounded to the same.
        best = self.logits.max(-1)
        tokens = in_vocabulary(best.indices, self.vocabulary)
        normalisers = self.logits.logsumexp(-1)  # (rows, slots)
        return tokens, (best.values - normalisers).exp()

    def lattice(self) -> Lattice:
        """Return a lattice in which candidates do not depend on those of the slot before."""
        count = self.logits.size(-1) - (self.vocabulary is None)  # Pad is no candidate.
        best, indices = self.logits.topk(min(CANDIDATES, count))
        following = best[:, 1:, None].expand(-1, -1, best.size(-1), -1)
        return Lattice(in_vocabulary(indices, self.vocabulary), best[:, 0], following)


@dataclass(frozen=True)
class Lattice:
    """Each slot's best candidates, and how well they follow those of the slot before."""

    #: ``(rows, slots, candidates)`` tokens, the first slot's best one first.
    candidates: Tensor
    #: ``(rows, candidates)`` float32 scores of the first slot's.
    first: Tensor
    #: ``(rows, slots - 1, candidates, candidates)`` float32 scores of the others', after each one
    #: of the slot before. The scores that may follow one candidate are to be normalised together.
    following: Tensor

    def choose(self) -> Tensor:
        """Return ``(rows, slots)`` tokens, each the best one after the one before it."""
        return self.tokens(self.greedy())

    def choose_with_confidence(self) -> tuple[Tensor, Tensor]:
        """Return these tokens, and their probabilities among each slot's candidates."""
        indices = self.greedy()
        scores = torch.cat([self.first[:, None], self.after(self.following, indices)], dim=1)
        return self.tokens(indices), scores.softmax(-1).amax(-1)

    def lattice(self) -> Lattice:
        """Return this lattice."""
        return self

    def greedy(self) -> Tensor:
        """Return ``(rows, slots)`` indices of candidates: slot by slot the best one."""
        return self.walk(torch.zeros_like(self.candidates[:, 0, 0]), self.following.argmax(-1))

    @staticmethod
    def walk(first: Tensor, following: Tensor) -> Tensor:
        """Return ``(rows, slots)`` indices: ``first`` ``(rows,)``, then those that ``following``
        ``(rows, slots - 1, candidates)`` has for the index before."""
        chosen = [first[:, None]]
        for followers in following.unbind(1):
            chosen.append(followers.gather(1, chosen[-1]))
        return torch.cat(chosen, dim=1)

    def tokens(self, indices: Tensor) -> Tensor:
        """Return ``(rows, slots)`` the candidates of these indices."""
        return self.candidates.gather(-1, indices[..., None])[..., 0]

    @staticmethod
    def after(following: Tensor, indices: Tensor) -> Tensor:
        """Return ``(rows, slots - 1, candidates)`` scores after the candidates of these indices,
        from ``(rows, slots - 1, candidates, candidates)``."""
        before = indices[:, :-1, None, None].expand(-1, -1, 1, following.size(-1))
        return following.gather(2, before)[:, :, 0]


SlotScores = SlotLogits | Lattice


class LogitScorer:
    """Scores every slot alone."""

    lookups = ()

    def __init__(self, logits: Projection, vocabulary: Tensor | None = None) -> None:
        """``vocabulary``: ``(n,)`` the draft vocabulary; None: all tokens."""
        self._logits = logits
        self._vocabulary = vocabulary
        self.projections: Sequence[Projection] = [logits]
        assert logits.weight is not None
        # Pad is never a candidate.
        self.candidates = min(CANDIDATES, len(logits.weight) - (vocabulary is None))

    def __call__(self, x: Tensor, last: Tensor) -> tuple[Tensor]:
        return (self._logits(x),)

    def read(self, *scores: Tensor) -> SlotLogits:
        # In float32: on a CPU, bfloat16's argmax is five times slower.
        return SlotLogits(scores[0].float(), self._vocabulary)


class PreviousTokenHead(nn.Module):
    """Corrects a slot's state for the token before it: ``x + out(relu(state(x) + token(e)))``.

    Slots of a block are computed in parallel, so that two may each be likely and not fit together.
    In training the previous token is the true one: a slot's acceptance only matters where its
    predecessor was accepted. Part of the slots is trained with an unknown predecessor, with which
    candidates are chosen.
    """

    UNKNOWN = 0.25
    CANDIDATES = CANDIDATES

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.state = nn.Linear(dim, dim)
        self.token = nn.Linear(dim, dim, bias=False)
        self.out = nn.Linear(dim, dim)
        self.unknown = nn.Parameter(torch.zeros(dim))
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor, embedded: Tensor) -> Tensor:
        """Return corrected states ``(…, channels)``; ``embedded``: the previous tokens."""
        return x + self.out(torch.relu(self.state(x) + self.token(embedded)))


class TokenChain:
    """Scores all pairs of neighbouring slots' best candidates, by weights that must not change."""

    lookups = "after", "output"

    def __init__(
        self,
        head: PreviousTokenHead,
        embedded: Tensor,
        output: Tensor,
        logits: Projection,
        vocabulary: Tensor | None = None,
    ) -> None:
        """
        Args:
            embedded: ``(vocab, channels)`` the target tokens' embeddings, scaled.
            output: ``(vocab, channels)`` the output projection's weight.
            logits: from states to logits of the draft vocabulary, or of all tokens, where pad's is
                the lowest.
            vocabulary: ``(n,)`` the draft vocabulary; None: all tokens.
        """
        self._state = projection(head.state)
        self._correct = projection(head.out)
        self.projections: Sequence[Projection] = [self._state, self._correct, logits]
        # The head's terms for each token of the vocabulary, and for an unknown one.
        after = head.token(embedded)
        # A large table, and drafts are as good with float16.
        self.after = after.half() if after.dtype == torch.float32 else after
        self._unknown = head.token(head.unknown)
        self.output = output
        self._logits = logits
        self._vocabulary = vocabulary
        # Pad is never a candidate.
        tokens = len(output) - 1 if vocabulary is None else len(vocabulary)
        self.candidates = min(head.CANDIDATES, tokens)

    def __call__(self, x: Tensor, last: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the parts of a :class:`Lattice`, in its order, for states ``x`` ``(rows, slots,
        channels)`` after tokens ``last`` ``(rows,)``."""
        rows, slots, dim = x.shape
        state = self._state(x)
        before = self._unknown.expand(rows, slots - 1, dim)
        known = F.embedding(last[:, None], self.after)
        before = torch.cat([known, before], dim=1)
        logits = self._logits(x + self._correct(torch.relu(state + before)))
        # A CPU searches bfloat16 several times slower than float32, a GPU twice as fast.
        if not logits.is_cuda:
            logits = logits.float()
        best, indices = logits.topk(self.candidates)
        candidates = in_vocabulary(indices, self._vocabulary)
        # Lookups as embeddings: on a CPU, three times as fast as indexing.
        after = F.embedding(candidates[:, :-1], self.after)
        hidden = torch.relu(state[:, 1:, None] + after)
        pairs = x[:, 1:, None] + self._correct(hidden)
        following = F.embedding(candidates[:, 1:], self.output)
        scores = (pairs @ following.transpose(-1, -2)).float()
        return candidates, best[:, 0].float(), scores

    def read(self, *parts: Tensor) -> Lattice:
        """Wrap the tensors returned by a call."""
        return Lattice(*parts)


#: Scores the tokens that slots of a block may hold.
SlotScorer = LogitScorer | TokenChain
