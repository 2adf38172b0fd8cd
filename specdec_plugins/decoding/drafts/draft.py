"""What all drafts have in common."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from specdec_plugins.decoding.acceptance import AcceptanceRule, Accepted, Verification


class Draft(Protocol):
    """Drafted tokens of every row, from drafting to acceptance."""

    @property
    def tokens(self) -> Tensor:
        """``(rows, slots)`` drafted tokens; a row's own are the first of them."""
        ...

    @property
    def drafted(self) -> list[int]:
        """Draft lengths: how many tokens are each row's."""
        ...

    @property
    def called(self) -> list[bool]:
        """Which rows had a pass of the drafter, and did not reuse an earlier draft."""
        ...

    @property
    def depths(self) -> Tensor:
        """``(slots + 1,)`` or ``(rows, slots + 1)``: how far from the last committed token, which
        comes first, each token stands."""
        ...

    @property
    def after(self) -> Tensor:
        """``(rows, slots)``: which token that the verifier reads comes before each: 0 is the last
        committed one, i > 0 the i-th drafted one."""
        ...

    @property
    def ancestors(self) -> Tensor:
        """``(slots + 1, slots + 1)`` or ``(rows, slots + 1, slots + 1)`` bool: which tokens each
        one comes after, itself included."""
        ...

    def cut(self, lengths: Tensor) -> Draft:
        """What is verified of it where a controller asks for ``(rows,)`` tokens."""
        ...

    def accept(
        self, rule: AcceptanceRule, verification: Verification, room: list[int] | None
    ) -> Accepted:
        """What is committed of it.

        Args:
            verification: of the last committed tokens and this draft.
            room: tokens that each row may still have before an EOS is forced on it; None where no
                draft reaches as far.
        """
        ...

    def parents_of(self, row: int) -> list[int] | None:
        """The node before each drafted token, 0 being the last committed one, for a trace; None
        where each token follows the one before it."""
        ...

    def chances(self) -> list[list[float]]:
        """The probability of each drafted token to the drafter, after the one that it comes after,
        for a trace."""
        ...
