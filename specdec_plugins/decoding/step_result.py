"""What a step did to every row, as the host knows it. No fairseq in here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from specdec_plugins.models.rows import unfinished


@dataclass(frozen=True)
class StepResult:
    """A value a row of the rows that the step had."""

    rows: list[int]
    """Where each stands in the batch as it began."""
    drafted: list[int]
    """Draft lengths: slots, or nodes of a tree."""
    called: list[bool]
    """Whether it had a pass of the drafter, and did not reuse an earlier draft."""
    expected: list[float]
    """How many tokens of its tree would be accepted if each were as often as it is probable to the
    drafter; 0 of a chain."""
    verified: list[int]
    """Verify lengths."""
    accepted: list[int]
    """Drafted tokens that were committed; not an EOS that the length limit forces."""
    committed: list[int]
    """Tokens that were committed, bonus token included."""
    finished: list[bool]
    """Whether they end the sentence."""
    last: list[int]
    """The last of these tokens."""
    lengths: list[int]
    """Committed tokens in all."""
    limited: list[bool]
    """Whether the length limit ended the sentence."""
    sources: Tensor
    """``(rows, n)`` the token after which each committed one comes: 0 is the last one of the step
    before, i > 0 the i-th drafted one."""

    @cached_property
    def kept(self) -> list[int]:
        """Which of these rows the next step has, in its order: rows change places. For those that
        remember something of each."""
        return unfinished(self.finished)

    @property
    def ended(self) -> list[bool]:
        """Where the last accepted token ends the sentence: no bonus token came after it."""
        return [new == count for new, count in zip(self.committed, self.accepted)]

    @property
    def rejected(self) -> list[bool]:
        """Of chains: whether the token after the accepted ones was verified and rejected. Else all
        that was verified was accepted, or the sentence ends before it, so that nothing is known of
        the slots after the accepted ones."""
        return [
            not ended and accepted < verified and not limited
            for ended, accepted, verified, limited in zip(
                self.ended, self.accepted, self.verified, self.limited
            )
        ]

    @cached_property
    def nodes(self) -> list[list[int]]:
        """Of trees: the accepted nodes of each row; on a GPU, this waits for it."""
        ways: list[list[int]] = self.sources.tolist()
        return [way[1 : count + 1] for way, count in zip(ways, self.accepted)]
