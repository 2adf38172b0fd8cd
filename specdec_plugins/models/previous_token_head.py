"""A head that scores a slot's tokens after the token before it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec_plugins.models.lattice import CANDIDATES, Lattice, in_vocabulary
from specdec_plugins.models.layers import Projection, projection


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
        self._state, self._correct = projection(head.state), projection(head.out)
        self.projections: Sequence[Projection] = [self._state, self._correct, logits]
        # The head's terms for each token of the vocabulary, and for an unknown one.
        self._after = head.token(embedded)
        self._unknown = head.token(head.unknown)
        self._output, self._logits, self._vocabulary = output, logits, vocabulary
        self.lookups: Sequence[Tensor] = [self._after, output]
        # Pad is never a candidate.
        tokens = len(output) - 1 if vocabulary is None else len(vocabulary)
        self.candidates = min(head.CANDIDATES, tokens)

    def __call__(self, x: Tensor, last: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the parts of a :class:`Lattice`, in its order, for states ``x`` ``(rows, slots,
        channels)`` after tokens ``last`` ``(rows,)``."""
        rows, slots, dim = x.shape
        state = self._state(x)
        before = self._unknown.expand(rows, slots - 1, dim)
        before = torch.cat([F.embedding(last[:, None], self._after), before], dim=1)
        logits = self._logits(x + self._correct(torch.relu(state + before)))
        # A CPU searches bfloat16 several times slower than float32, a GPU twice as fast.
        best, indices = (logits if logits.is_cuda else logits.float()).topk(self.candidates)
        candidates = in_vocabulary(indices, self._vocabulary)
        # Lookups as embeddings: on a CPU, three times as fast as indexing.
        after = F.embedding(candidates[:, :-1], self._after)
        pairs = x[:, 1:, None] + self._correct(torch.relu(state[:, 1:, None] + after))
        following = F.embedding(candidates[:, 1:], self._output)
        scores = (pairs @ following.transpose(-1, -2)).float()
        return candidates, best[:, 0].float(), scores

    def read(self, *parts: Tensor) -> Lattice:
        """Wrap the tensors returned by a call."""
        return Lattice(*parts)
