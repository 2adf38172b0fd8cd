"""The results of steps and sentences, and observers of steps. No fairseq in here."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypedDict

from torch import Tensor

from specdec_plugins.decoding.acceptance import AcceptanceRule, Accepted, Verification
from specdec_plugins.decoding.drafts import Draft
from specdec_plugins.models.rows import unfinished

if TYPE_CHECKING:
    from fairseq.data import Dictionary


@dataclass(kw_only=True)
class StepResult(Accepted):
    """A step's committed tokens and counts, a value for each row that took part in it."""

    #: The index of each row in the batch as it began.
    rows: list[int]
    #: Draft lengths: slots, or nodes of a tree.
    drafted: list[int]
    #: The drafter's passes: 0 if an earlier draft was reused.
    called: Sequence[int]
    #: All committed tokens, those of earlier steps included.
    lengths: list[int]
    #: The last committed token.
    last: list[int]
    #: True if it is EOS, or ends a row that was to have so many tokens. An observer that
    #: :attr:`Observer.ends_rows` may end others.
    finished: list[bool]
    #: True if the length limit ended the sentence.
    limited: list[bool]
    verifier_called: bool = True

    @cached_property
    def kept(self) -> list[int]:
        """The rows that go on, in the order of the next step: rows change places."""
        return unfinished(self.finished)

    @property
    def rejected(self) -> list[bool]:
        """True where the token after the accepted ones of a chain was verified and rejected."""
        return [
            new > n and n < verified and not limited
            for new, n, verified, limited in zip(
                self.committed, self.accepted, self.verified, self.limited
            )
        ]

    @property
    def nodes(self) -> list[list[int]]:
        """The accepted nodes of each row's tree; this waits for a GPU."""
        paths: list[list[int]] = self.sources.tolist()
        return [path[1 : count + 1] for path, count in zip(paths, self.accepted)]


@dataclass(frozen=True)
class StepTrace:
    """A step of a row, which committed ``drafted[:accepted]``, then ``bonus``; as symbols."""

    drafted: list[str]
    #: Drafted tokens that were sent to the verifier, the first ones.
    verify_length: int
    accepted: int
    #: The verifier's token after them; None where they end in the sentence's EOS.
    bonus: str | None
    #: Wall time of the batch's step, the same for all its rows.
    milliseconds: float
    #: The index in ``drafted`` of each tree token's parent; -1: the last token of the step before.
    #: The accepted tokens come first, then the others by probability. None for chains.
    parents: list[int] | None = None
    #: Each drafted token's probability to the verifier; None where it was not verified.
    p: list[float | None] | None = None
    #: Each drafted token's probability to the drafter, among its candidates.
    q: list[float] | None = None
    #: The acceptance head's probability that each drafted token is accepted if all before it are;
    #: None without a head.
    p_acc: list[float] | None = None

    @property
    def committed(self) -> int:
        """Tokens that the step committed, bonus token included."""
        return self.accepted + (self.bonus is not None)


class Hypothesis(TypedDict, total=False):
    """fairseq's result of a sentence, with what our generators add."""

    #: ``(length,)``, EOS included.
    tokens: Tensor
    score: Tensor
    positional_scores: Tensor
    attention: Tensor
    #: Empty unless fairseq's search was asked for it.
    alignment: Tensor | Sequence[Any]
    steps: int
    #: The number of drafted tokens that each step committed.
    accepted: list[int]
    #: The number of drafted tokens that each step verified.
    verified: list[int]
    #: The number of tokens that the target prefix forced.
    forced: int
    #: The forced tokens, if any, and the tokens that each step committed, as fairseq's
    #: ``--retain-iter-history`` prints them.
    history: list[dict[str, Tensor]]
    trace: list[StepTrace]


@dataclass(frozen=True)
class Judgement:
    """A step's draft and the verifier's view of it."""

    draft: Draft
    #: The part of the draft that was sent to the verifier.
    verified: Draft
    rule: AcceptanceRule
    verification: Verification
    #: ``(rows, slots)`` the acceptance head's probabilities; None if the controller asks no head.
    p_acc: Tensor | None = None


class Observer:
    """Called after every step; this one does nothing."""

    #: True if it reads drafts, with the drafter's probability of each token.
    needs_judgement = False
    #: True if it may end rows, by :attr:`StepResult.finished`.
    ends_rows = False

    def begin(self, forced: list[int]) -> None:
        """Begin a batch; ``forced``: the number of forced tokens of each row."""

    def step(self, result: StepResult, judgement: Judgement | None = None) -> None:
        """Take in a step; ``judgement`` is None unless an observer needs it."""

    def end(self, hypotheses: list[list[Hypothesis]]) -> None:
        """End a batch; something may be added to each row's hypothesis."""


class CommitObserver(Observer):
    """Hands the tokens that steps commit to whoever follows the rows of a batch."""

    def __init__(self) -> None:
        self._rows: Sequence[Callable[[int, list[int], int], bool]] = ()

    def follow(self, rows: Sequence[Callable[[int, list[int], int], bool]]) -> None:
        """Call these, one for each row of the next batch, or none.

        Each step calls a row's with the number of tokens before the step, with the tokens that it
        commits, and with how many of these, the first ones, were drafted. False ends the row.
        """
        self._rows = rows
        self.ends_rows = bool(rows)

    def step(self, result: StepResult, judgement: Judgement | None = None) -> None:
        if not self._rows:
            return
        tokens = result.tokens.tolist()
        for i, row in enumerate(result.rows):
            count = result.committed[i]
            before = result.lengths[i] - count
            if not self._rows[row](before, tokens[i][:count], result.accepted[i]):
                result.finished[i] = True


class TraceRecorder(Observer):
    """Adds ``trace`` to every hypothesis, for some copies to the host at each step."""

    needs_judgement = True

    def __init__(self, tgt_dict: Dictionary) -> None:
        self._symbols = tgt_dict

    def begin(self, forced: list[int]) -> None:
        self._steps: list[list[StepTrace]] = [[] for _ in forced]
        self._clock = time.perf_counter()

    def step(self, result: StepResult, judgement: Judgement | None = None) -> None:
        assert judgement is not None
        milliseconds = round(1000 * (time.perf_counter() - self._clock), 3)
        draft = judgement.draft
        verified = judgement.verified
        after = verified.links.after.expand_as(verified.tokens)
        probabilities = judgement.rule.probabilities_of(
            judgement.verification, verified.tokens, after
        )
        nodes = result.nodes
        p_acc = None if judgement.p_acc is None else judgement.p_acc.tolist()
        rows = zip(
            draft.tokens.tolist(),
            probabilities.tolist(),
            draft.chances(),
            result.drafted,
            result.verified,
        )
        for i, (words, all_p, all_q, size, count) in enumerate(rows):
            order = list(range(size))
            parents = None
            if not draft.links.straight:
                order, parents = _path_first(draft.links.after[i, :size].tolist(), nodes[i])
            bonus = None
            if result.committed[i] > result.accepted[i]:
                bonus = self._symbols[result.last[i]]
            step = StepTrace(
                drafted=[self._symbols[words[slot]] for slot in order],
                verify_length=count,
                accepted=result.accepted[i],
                bonus=bonus,
                milliseconds=milliseconds,
                parents=parents,
                p=[float(f"{all_p[slot]:.6g}") if slot < count else None for slot in order],
                q=[float(f"{all_q[slot]:.6g}") for slot in order],
                p_acc=None if p_acc is None else [float(f"{p:.6g}") for p in p_acc[i][:size]],
            )
            self._steps[result.rows[i]].append(step)
        self._clock = time.perf_counter()

    def end(self, hypotheses: list[list[Hypothesis]]) -> None:
        for (hypothesis,), steps in zip(hypotheses, self._steps):
            hypothesis["trace"] = steps


def _path_first(parents: list[int], path: list[int]) -> tuple[list[int], list[int]]:
    """Order a tree's tokens, those of ``path`` first; return their old indices and new parents."""
    order = path + [node for node in range(1, len(parents) + 1) if node not in path]
    new = {node: index for index, node in enumerate(order)}
    return [node - 1 for node in order], [new.get(parents[node - 1], -1) for node in order]
