"""Slots of a block are computed in parallel; here each token is chosen knowing the one before."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec_plugins.models.lattice import CANDIDATES, Lattice, in_vocabulary
from specdec_plugins.models.layers import Projection, projection


class PreviousTokenHead(nn.Module):
    """Corrects a slot's state for the token before it: ``x + out(relu(state(x) + token(e)))``.

    The slots of a block are computed in parallel, so that two may each be likely and not fit
    together. Training gives the true previous token: wherever a slot's own acceptance matters, its
    predecessor was accepted, so nothing else needs to be learned. Part of the slots is trained with
    an unknown predecessor, since that is how candidates are found.
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
        """``(…, channels)`` corrected states; ``embedded`` is the previous token's embedding."""
        return x + self.out(torch.relu(self.state(x) + self.token(embedded)))


class TokenChain:
    """Scores each slot's best candidates after each other: all pairs of neighbours at once.

    Built once, with weights that are not to change.
    """

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
            logits: from states ``(rows, slots, channels)`` to ``(rows, slots, n)``, of the draft
                vocabulary; of all tokens pad's is the lowest.
            vocabulary: ``(n,)`` the draft vocabulary; None: all tokens.
        """
        self._state, self._correct = projection(head.state), projection(head.out)
        self.projections: Sequence[Projection] = [self._state, self._correct, logits]
        # What the head adds for each token of the vocabulary, and for an unknown one.
        self._after = head.token(embedded)
        self._unknown = head.token(head.unknown)
        self._output = output
        self.lookups: Sequence[Tensor] = [self._after, output]
        self._logits = logits
        self._vocabulary = vocabulary
        # Pad is never among them.
        most = len(output) - 1 if vocabulary is None else len(vocabulary)
        self.candidates = min(head.CANDIDATES, most)

    def __call__(self, x: Tensor, last: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the parts of a :class:`Lattice`, in its order, for states ``x`` ``(rows, slots,
        channels)`` after tokens ``last`` ``(rows,)``."""
        rows, slots, dim = x.shape
        state = self._state(x)
        before = self._unknown.expand(rows, slots - 1, dim)
        before = torch.cat([F.embedding(last[:, None], self._after), before], dim=1)
        logits = self._logits(x + self._correct(torch.relu(state + before)))
        # A CPU searches bfloat16 several times slower than float32, a GPU twice as fast.
        best, places = (logits if logits.is_cuda else logits.float()).topk(self.candidates)
        candidates = in_vocabulary(places, self._vocabulary)
        # Lookups as embeddings: on a CPU, three times as fast as indexing.
        after = F.embedding(candidates[:, :-1], self._after)
        pairs = x[:, 1:, None] + self._correct(torch.relu(state[:, 1:, None] + after))
        following = F.embedding(candidates[:, 1:], self._output)
        scores = (pairs @ following.transpose(-1, -2)).float()
        return candidates, best[:, 0].float(), scores

    def read(self, *parts: Tensor) -> Lattice:
        """Return what a call has returned."""
        return Lattice(*parts)
