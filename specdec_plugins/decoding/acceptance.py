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

    def accepted(self, scores: Tensor, best: Tensor, draft: Tensor) -> Tensor:
        """How many leading drafted tokens of every row are accepted.

        Args:
            scores: ``(batch, slots, vocab)`` the verifier's logits or log-probabilities; a
                forbidden token's is minus infinity.
            best: ``(batch, slots)`` the token that greedy search takes.
            draft: ``(batch, slots)`` drafted tokens.

        Returns:
            ``(batch,)`` between 0 and the number of slots.
        """
        if self.beta == 1:
            # Not "no better token": of two tokens that tie, only the one greedy takes.
            good = draft == best
        else:
            drafted = scores.gather(-1, draft[..., None])
            gap = scores.gather(-1, best[..., None]) - drafted
            rank = (scores > drafted).sum(-1)
            good = (rank < self.beta) & (gap <= self.tau)[..., 0] & drafted[..., 0].isfinite()
        return good.long().cumprod(-1).sum(-1)
