"""What the verifier says of a draft, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.decoding.kernels import Floating, Ints, compiled, indices, on_host


@dataclass(frozen=True)
class Verification:
    """What the verifier says after each token that it read: the last committed one, then the draft.

    Rules and the loop ask for no more than what is here, so that an engine need not give all.
    """

    scores: Tensor
    """``(rows, slots, vocab)`` log-probabilities, those of a slot up to a number of its own; minus
    infinity where a token is forbidden."""
    eos: int
    normalisers: Tensor | None = None
    """``(rows, slots)`` what to take off, the logarithm of the summed exponentials of scores before
    any were forbidden: as in fairseq, what is left need not add up to one. None where scores are
    log-probabilities as they are."""
    by_tensors: bool = False
    """Whether tensor code alone is to ask, that can be recorded, also where a CPU has quicker."""

    @cached_property
    def best(self) -> Tensor:
        """``(rows, slots)`` the most probable token; of equals the first."""
        if self._on_host:
            # numpy's is ten times as fast as torch's.
            return torch.from_numpy(self.scores.numpy().argmax(-1))
        return self.scores.argmax(-1)

    @property
    def _on_host(self) -> bool:
        return self.scores.device.type == "cpu" and not self.by_tensors

    @cached_property
    def log_probabilities(self) -> Tensor:
        """As ``scores``, of all tokens: for what asks for a few of them there is :meth:`of`."""
        if self.normalisers is None:
            return self.scores
        return self.scores - self.normalisers[..., None]

    def _after(self, sources: Tensor) -> Tensor:
        """``(rows, n, vocab)`` scores after the ``sources``-th token read, ``(rows, n)``."""
        return self.scores.gather(1, sources[..., None].expand(-1, -1, self.scores.size(-1)))

    def at(self, tokens: Tensor, sources: Tensor) -> Tensor:
        """``(rows, n)`` scores of ``tokens``, each after the ``sources``-th one read."""
        # Where rows are apart, to gather from all scores in a line would copy them.
        return self.scores[indices(len(tokens), tokens.device)[:, None], sources, tokens]

    def among_best(self, count: int, scores: Tensor, sources: Tensor, asked: Tensor) -> Tensor:
        """``(rows, n)`` whether fewer than ``count`` tokens have higher ``scores`` after the
        ``sources``-th one read; False where that is not ``asked``."""
        if not self._on_host:
            return asked & ((self._after(sources) > scores[..., None]).sum(-1) < count)
        # Few are asked for, and numpy counts several times as fast as torch.
        table, found = self.scores.numpy(), np.zeros(asked.shape, dtype=bool)
        places, least = sources.numpy(), scores.numpy()
        for i in zip(*asked.numpy().nonzero()):
            found[i] = np.count_nonzero(table[i[0], places[i]] > least[i]) < count
        return torch.from_numpy(found)

    def of(self, tokens: Tensor, sources: Tensor) -> Tensor:
        """``(rows, n)`` log-probabilities of ``tokens``, each after the ``sources``-th one read."""
        if self.normalisers is None:
            return self.at(tokens, sources)
        if self._on_host:
            given = self.scores.numpy(), on_host(self.normalisers)
            return torch.from_numpy(_of(*given, on_host(tokens), on_host(sources)))
        return self.at(tokens, sources) - self.normalisers.gather(1, sources)


@compiled
def _of(scores: Floating, normalisers: Floating, tokens: Ints, sources: Ints) -> Floating:
    """See :meth:`Verification.of`, which every step asks: as tensor code it takes twice as long."""
    found = np.empty(tokens.shape, scores.dtype)
    for row in range(tokens.shape[0]):
        for n in range(tokens.shape[1]):
            source = sources[row, n]
            found[row, n] = scores[row, source, tokens[row, n]] - normalisers[row, source]
    return found


@dataclass(frozen=True)
class Accepted:
    """The tokens to commit of every row: accepted ones, then the verifier's, up to EOS."""

    tokens: Tensor
    """``(rows, n)`` these tokens, then padding."""
    sources: Tensor
    """``(rows, n)`` the token that the verifier read before each, counted from the root, 0."""
    committed: list[int]
    """Tokens to commit."""
    accepted: list[int]
    """Drafted tokens among them; not an EOS that the length limit forces."""
    verified: list[int]
    """Drafted tokens that were looked at."""
    last: list[int]
    """The last token to commit."""
    finished: list[bool]
    """True if it is EOS."""
