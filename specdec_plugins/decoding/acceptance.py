"""Which drafted tokens are accepted: pure functions on tensors, no fairseq."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from specdec_plugins.decoding.limits import LARGEST
from specdec_plugins.decoding.probabilities import Sampling, draw, log_probabilities


@dataclass(frozen=True)
class AcceptanceRule:
    """Strict (``beta`` 1: the verifier's own greedy output), relaxed, or lossless sampling.

    Relaxed: a drafted token is accepted when it is among the verifier's ``beta`` best tokens and
    its score is within ``tau`` nats of the best (SpecDec, Xia et al., EMNLP 2023 Findings, §3.2).
    Relaxed output is not the verifier's greedy output.

    Sampling: the verifier draws its tokens, and output is distributed as if it did so alone. A
    drafted token that was not itself drawn is accepted when it is the one that the verifier draws;
    of drawn ones :func:`~specdec_plugins.decoding.probabilities.speculative_sampling` decides.
    """

    beta: int = 1
    tau: float = 0.0
    sampling: Sampling | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.beta <= LARGEST:
            raise ValueError(f"--beta {self.beta}: must be between 1 (strict) and {LARGEST}")
        if not self.tau >= 0:
            raise ValueError(f"--tau {self.tau}: must be 0 or more")
        if self.sampling and (self.beta > 1 or self.tau > 0):
            raise ValueError(
                f"--beta {self.beta} --tau {self.tau}: go without --sampling, which is lossless"
            )

    def __str__(self) -> str:
        if self.sampling:
            return str(self.sampling)
        return "strict" if self.beta == 1 else f"relaxed (beta {self.beta}, tau {self.tau})"

    @classmethod
    def from_config(cls, config: Any) -> AcceptanceRule:
        """From options named ``beta`` and ``tau``, and fairseq's of sampling.

        Raises:
            ValueError: an impossible one, by its flag.
        """
        sampling = Sampling(config.sampling_topk, config.sampling_topp)
        if not config.sampling and str(sampling) != "sampling":
            raise ValueError("--sampling-topk, --sampling-topp: give --sampling too")
        return cls(config.beta, config.tau, sampling if config.sampling else None)

    @property
    def flags(self) -> str:
        """What to give to have it."""
        if self.sampling:
            return self.sampling.flags
        return f"--beta {self.beta} --tau {self.tau}"

    @property
    def name(self) -> str:
        """``strict``, ``relaxed`` or ``sampling``."""
        if self.sampling:
            return "sampling"
        return "strict" if self.beta == 1 else "relaxed"

    def proposer(self, temperature: float) -> Callable[[Tensor], Tensor] | None:
        """What to draw drafts by: from the drafter's scores to probabilities; None if not drawn."""
        if self.sampling is None:
            return None
        sampling = self.sampling
        return lambda scores: sampling.probabilities(log_probabilities(scores, temperature))

    def own(self, lprobs: Tensor) -> Tensor:
        """``(rows, slots)`` the tokens that the verifier would commit, the best or drawn ones, by
        ``(rows, slots, vocab)`` log-probabilities."""
        if self.sampling:
            return draw(self.sampling.probabilities(lprobs))
        return lprobs.argmax(-1)

    def agrees(
        self, scores: Tensor, best: Tensor, draft: Tensor, after: Tensor | None = None
    ) -> Tensor:
        """Which drafted tokens are accepted, each by itself.

        Args:
            scores: ``(batch, slots, vocab)`` the verifier's logits or log-probabilities; a
                forbidden token's is minus infinity.
            best: ``(batch, slots)`` the verifier's :meth:`own` token.
            draft: ``(batch, drafted)`` drafted tokens.
            after: ``(batch, drafted)`` the slot whose scores judge each of them; None: its own.

        Returns:
            ``(batch, drafted)`` bool.
        """
        if after is not None:
            best = best.gather(1, after)
        if self.beta == 1:
            # Not "no better token": of two tokens that tie, only the one that is taken.
            return draft == best
        if after is not None:
            scores = scores.gather(1, after[..., None].expand(-1, -1, scores.size(-1)))
        drafted = scores.gather(-1, draft[..., None])
        gap = scores.gather(-1, best[..., None]) - drafted
        rank = (scores > drafted).sum(-1)
        return (rank < self.beta) & (gap <= self.tau)[..., 0] & drafted[..., 0].isfinite()

    def accepted(self, scores: Tensor, best: Tensor, draft: Tensor) -> Tensor:
        """How many leading drafted tokens of every row are accepted: ``(batch,)``.

        Args:
            scores, best, draft: as of :meth:`agrees`, all with as many slots.
        """
        return self.agrees(scores, best, draft).long().cumprod(-1).sum(-1)
