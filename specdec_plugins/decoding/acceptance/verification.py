"""The verifier's scores of a draft, and the tokens to commit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.decoding.kernels import indices


@dataclass(frozen=True)
class Verification:
    """The verifier's scores after each token that it read: the root, then the draft."""

    scores: Tensor
    """``(rows, slots, vocab)`` log-probabilities before ``normalisers`` are subtracted; minus
    infinity where a token is forbidden."""
    eos: int
    normalisers: Tensor | None = None
    """``(rows, slots)`` log of the summed exponentials of scores before any were forbidden: as in
    fairseq, the rest need not add up to 1. None: already subtracted."""
    by_tensors: bool = False
    """True to use tensor code alone, which can be recorded, also on a CPU."""

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
        """``(rows, slots, vocab)``; for a few tokens :meth:`of` is faster."""
        if self.normalisers is None:
            return self.scores
        return self.scores - self.normalisers[..., None]

    def at(self, tokens: Tensor, sources: Tensor) -> Tensor:
        """Return ``(rows, n)`` scores of ``tokens``, each after the ``sources``-th one read."""
        # Where rows are apart, to gather from all scores in a line would copy them.
        return self.scores[indices(len(tokens), tokens.device)[:, None], sources, tokens]

    def of(self, tokens: Tensor, sources: Tensor) -> Tensor:
        """Return ``(rows, n)`` log-probabilities of tokens after the ``sources``-th one read."""
        scores = self.at(tokens, sources)
        return scores if self.normalisers is None else scores - self.normalisers.gather(1, sources)

    def among_best(self, count: int, scores: Tensor, sources: Tensor, asked: Tensor) -> Tensor:
        """Return ``(rows, n)`` True where ``asked`` and fewer than ``count`` tokens have higher
        ``scores`` after the ``sources``-th one read."""
        if not self._on_host:
            after = sources[..., None].expand(-1, -1, self.scores.size(-1))
            better = self.scores.gather(1, after) > scores[..., None]
            return asked & (better.sum(-1) < count)
        # Few are asked for, and numpy counts several times as fast as torch.
        table, among = self.scores.numpy(), np.zeros(asked.shape, dtype=bool)
        slots, bounds = sources.numpy(), scores.numpy()
        for i in zip(*asked.numpy().nonzero()):
            among[i] = np.count_nonzero(table[i[0], slots[i]] > bounds[i]) < count
        return torch.from_numpy(among)


@dataclass(frozen=True)
class Accepted:
    """The tokens to commit of every row: accepted ones, then the verifier's, up to EOS."""

    tokens: Tensor
    """``(rows, n)`` these tokens, then padding."""
    sources: Tensor
    """``(rows, n)`` the token before each: 0 is the last one of the step before, i > 0 the i-th
    drafted one."""
    committed: list[int]
    """The number of tokens to commit, bonus token included."""
    accepted: list[int]
    """Drafted tokens among them."""
    verified: list[int]
    """Verify lengths."""
    last: list[int]
    """The last token to commit."""
    finished: list[bool]
    """True if it is EOS."""
