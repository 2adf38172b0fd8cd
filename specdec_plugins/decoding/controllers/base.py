"""What a controller is asked and told. No fairseq in this package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from specdec_plugins.decoding.draft_tree import DraftTree, Path
from specdec_plugins.decoding.probabilities import Proposal
from specdec_plugins.decoding.tree_source import TreeSource


@dataclass(frozen=True)
class Draft:
    """What is drafted for every row, and what a controller may look at before it is verified."""

    tokens: Tensor
    """``(rows, slots)``, or ``(rows, nodes)`` of a tree, by probability."""
    states: Tensor | None = None
    """``(rows, slots, channels)`` the drafter's states that the tokens were chosen from; None where
    there are no slots, and of a tree."""
    probabilities: Tensor | None = None
    """``(rows, slots)`` float32: the drafter's probability of each token; only where they were
    drawn, or the controller reads it."""
    tree: DraftTree | None = None
    """How the tokens hang together; None where each follows the one before it."""
    source: TreeSource | None = None
    """What a tree was grown from."""
    left_over: list[bool] | None = None
    """Of each row, whether it had no drafter's pass, but a tree of what was left of its draft
    before; None: no row."""
    proposal: Proposal | None = None
    """What the tokens were drawn from; None where they were chosen."""

    @property
    def drew(self) -> list[bool]:
        """Of each row, whether it had a drafter's pass."""
        if self.left_over is not None:
            return [not left_over for left_over in self.left_over]
        rows, slots = self.tokens.shape
        return [slots > 0] * rows


@dataclass(frozen=True)
class Outcome:
    """What a step made of every row: tensors ``(rows,)`` on the device."""

    drafted: Tensor
    """Draft lengths."""
    verified: Tensor
    """Verify lengths."""
    accepted: Tensor
    """Drafted tokens that were committed: the first slots, or a way through a tree."""
    rejected: Tensor
    """True where the slot after those was verified and rejected; False where all that was verified
    was accepted, and where the accepted tokens or the length limit end the sentence, so that
    nothing is known of the slots after them. Of a tree it says nothing."""
    ended: Tensor
    """True where the last accepted token ends the sentence: no bonus token came after it."""
    lengths: Tensor
    """Committed tokens p of each row, those of the step included."""
    path: Path | None = None
    """Which tokens of a tree were accepted."""
    left_over: bool = False
    """Whether no row had a drafter's pass; see :class:`Draft`."""


class Predictor(Protocol):
    """What tells how likely drafted tokens are to be accepted."""

    def __call__(self, states: Tensor, probabilities: Tensor) -> Tensor:
        """``(rows, slots)`` probabilities that a slot is accepted given that all before it are.

        Args:
            states: ``(rows, slots, channels)`` the drafter's states.
            probabilities: ``(rows, slots)`` the drafter's probability of each drafted token.
        """
        ...


class Head(Predictor, Protocol):
    """An acceptance head, of which a controller needs no more than this."""

    def survivors(self, states: Tensor, probabilities: Tensor, least: float) -> Tensor:
        """``(rows,)`` slots, from the first on, that survive with a probability of at least
        ``least``: the product of what a call says of a slot and of all before it.

        Args:
            states: as of a call; ``probabilities`` too.
        """
        ...


class Controller(Protocol):
    """Decides how much to draft and how much of the draft to verify.

    Two questions a step, answered for every row by tensor code that never waits for the device; and
    where drafts are trees, which are grown on the host, a third one there. The
    answer to the first travels to the host with the step's own small report. That to the second
    cannot: on a GPU a controller that ``cuts`` costs one more small copy a step.
    """

    bounds: Bounds
    """What no length is ever outside of; of trees: of their nodes."""
    length: int
    """The draft length, and the verify length, of every row as long as nothing else is said. It may
    change from batch to batch and where rows are dropped, but not to or from 0 in a batch."""
    cuts: bool
    """Whether :meth:`verify_lengths` is to be asked."""
    weighs_all: bool
    """Whether its answer depends on more of the draft than the tokens that are to be verified and
    the one after them."""
    depth: int
    """If not 0, drafts are trees, so many tokens deep at most, and lengths count their nodes; they
    are not cut."""
    reads_probabilities: bool
    """Whether drafts are to come with the drafter's probabilities."""
    resumes: bool
    """Whether a batch that begins without drafts may have some later; if not, it is plain AR, and
    nothing more is asked or told."""

    def prepare(self, generator: Any, sample: dict[str, Any]) -> None:
        """Do what must be done before a batch is decoded and timed: measure, or look ahead."""
        ...

    def start(self, lengths: Tensor) -> Tensor | None:
        """Begin a batch; ``lengths`` ``(rows,)`` are zeros. Answers like :meth:`draft_lengths`."""
        ...

    def verify_lengths(self, draft: Draft, drafted: Tensor) -> Tensor:
        """``(rows,)`` slots to verify, at most ``drafted`` ``(rows,)``, the draft lengths."""
        ...

    def redrafts(self, promised: list[float]) -> list[bool]:
        """For each row, whether to draft a tree anew, though what is left of its last draft makes
        one that promises to have so many tokens accepted; 0 where nothing is left.

        Asked on the host, wherever something is left of any row. Where the answer for a row depends
        on the others, so does relaxed output.
        """
        ...

    def draft_lengths(self, outcome: Outcome) -> Tensor | None:
        """``(rows,)`` slots to draft in the next step, at most ``length``; None stands for that.

        ``outcome`` tells what became of the last step. A batch is drafted as wide as its longest
        row. What starts with None stays with it: this is then never asked.
        """
        ...

    def keep(self, rows: Tensor) -> None:
        """Go on with ``rows`` only; after :meth:`draft_lengths`, before the next draft."""
        ...


@dataclass(frozen=True)
class Bounds:
    """The least and the most slots of a draft and of what is verified of it."""

    least: int
    most: int

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most:
            raise ValueError(
                f"--min-draft {self.least}: must be between 0 and --max-draft, {self.most}"
            )


class Constant:
    """``constant``: every step drafts and verifies the most slots. It has nothing to do.

    The other controllers derive from it what they do not need.
    """

    cuts = False
    weighs_all = False
    depth = 0
    reads_probabilities = False
    resumes = True

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.length = bounds.most

    def prepare(self, generator: Any, sample: dict[str, Any]) -> None:
        """Nothing."""

    def start(self, lengths: Tensor) -> Tensor | None:
        """As many as ever."""
        return None

    def verify_lengths(self, draft: Draft, drafted: Tensor) -> Tensor:
        """All of them."""
        return drafted

    def redrafts(self, promised: list[float]) -> list[bool]:
        """Always."""
        return [True] * len(promised)

    def draft_lengths(self, outcome: Outcome) -> Tensor | None:
        """As many as ever."""
        return None

    def keep(self, rows: Tensor) -> None:
        """Nothing."""

    def _bounded(self, lengths: Tensor) -> Tensor:
        return lengths.clamp(self.bounds.least, self.bounds.most)

    def _cut(self, lengths: Tensor, drafted: Tensor) -> Tensor:
        """Verify lengths within the bounds and within what was drafted."""
        return torch.minimum(self._bounded(lengths), drafted)
