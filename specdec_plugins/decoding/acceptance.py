"""Which drafted tokens are accepted: pure functions on tensors, no fairseq."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class AcceptanceRule:
    """Strict (``beta`` 1: the verifier's own greedy output) or relaxed acceptance.

    Relaxed: a drafted token is accepted when it is among the verifier's ``beta`` best tokens and
    its score is within ``tau`` nats of the best (SpecDec, Xia et al., EMNLP 2023 Findings, §3.2).
    Relaxed output is not the verifier's greedy output.
    """

    beta: int = 1
    tau: float = 0.0

    def __post_init__(self) -> None:
        if self.beta < 1:
            raise ValueError(f"--beta {self.beta}: must be at least 1 (1 is strict)")
        if not self.tau >= 0:
            raise ValueError(f"--tau {self.tau}: must be 0 or more")

    def __str__(self) -> str:
        return "strict" if self.beta == 1 else f"relaxed (beta {self.beta}, tau {self.tau})"

    def agrees(
        self, scores: Tensor, best: Tensor, draft: Tensor, after: Tensor | None = None
    ) -> Tensor:
        """Which drafted tokens are accepted, each by itself.

        Args:
            scores: ``(batch, slots, vocab)`` the verifier's logits or log-probabilities; a
                forbidden token's is minus infinity.
            best: ``(batch, slots)`` the token that greedy search takes.
            draft: ``(batch, drafted)`` drafted tokens.
            after: ``(batch, drafted)`` the slot whose scores judge each of them; None: its own.

        Returns:
            ``(batch, drafted)`` bool.
        """
        if after is not None:
            best = best.gather(1, after)
        if self.beta == 1:
            # Not "no better token": of two tokens that tie, only the one greedy takes.
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
