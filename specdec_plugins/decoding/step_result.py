"""What a step did to every row, as the host knows it, and its record in a trace. No fairseq in
here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from specdec_plugins.models.rows import unfinished


@dataclass(frozen=True)
class StepResult:
    """A value a row of the rows that the step had."""

    rows: list[int]
    """The place of each row in the batch as it began."""
    drafted: list[int]
    """Draft lengths: slots, or nodes of a tree."""
    called: list[bool]
    """Whether it had a pass of the drafter, and did not reuse an earlier draft."""
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
    verifier_called: bool
    """Whether the verifier had a pass; not where the drafter is alone and reads nothing of one."""
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
        """Whether the last accepted token ends the sentence, row by row: no bonus token came after
        it."""
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


@dataclass(frozen=True)
class StepTrace:
    """One step of one row. Tokens are symbols of the target dictionary, EOS (``</s>``) included.

    What the step committed is ``drafted[:accepted]``, then ``bonus``. The other drafted tokens were
    rejected: those up to ``verify_length`` since the verifier did not want them or one before
    them, or since they come after the sentence's EOS; those from it on since they were not even
    sent to the verifier.
    """

    drafted: list[str]
    """The drafted tokens, one a slot or node: there are as many as the draft length."""
    verify_length: int
    """How many of them, from the first, were sent to the verifier."""
    accepted: int
    """How many of those, from the first, were committed."""
    bonus: str | None
    """The verifier's own token after them; None where they end in the sentence's EOS."""
    milliseconds: float
    """Wall time of the step of the whole batch that the row was in, the same for all its rows: from
    the end of the verifier's encoder, or of the step before, until its tokens are on the host."""
    parents: list[int] | None = None
    """Of a tree: the place in ``drafted`` of the token before each, -1 where that is the last one
    of the step before (and for ``<pad>``, which only fills up). The accepted tokens come first,
    then the others by probability. None where each token follows the one before it."""
    p: list[float | None] | None = None
    """Of each drafted token: how probable it is to the verifier after the one that it comes after,
    as the acceptance rule judges it; when sampling, what the verifier draws it by. None of what was
    not verified; 0 where a limit forbids it. Traces of earlier versions have none of these."""
    q: list[float] | None = None
    """How probable it is to the drafter, among all that it chose or drew it from."""
    p_acc: list[float | None] | None = None
    """min(1, p / q): with sampling, of a chain, the probability with which it is accepted if all
    before it are (Leviathan et al., ICML 2023, algorithm 1; the name is SpecDec++'s)."""
    head: list[float] | None = None
    """What an acceptance head said of that; None where none was asked."""

    @property
    def committed(self) -> int:
        """Tokens that the step committed, bonus token included."""
        return self.accepted + (self.bonus is not None)
