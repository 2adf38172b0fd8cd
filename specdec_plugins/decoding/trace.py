"""What every step of a sentence drafted, accepted and added: recorded only where asked for."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from specdec_plugins.decoding.drafts import Draft
from specdec_plugins.decoding.hypothesis import Hypothesis
from specdec_plugins.decoding.step_result import StepResult

if TYPE_CHECKING:
    from fairseq.data import Dictionary

Judge = Callable[[Tensor, Tensor], Tensor]
"""Of ``(rows, slots)`` drafted tokens and what they come after, their probabilities ``(rows,
slots)`` to the verifier."""


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


class TraceRecorder:
    """Writes down the steps of one batch after another. It costs some copies to the host a step."""

    def __init__(self, tgt_dict: Dictionary) -> None:
        self._symbols = tgt_dict
        self._steps: list[list[StepTrace]] = []
        self._clock = 0.0

    def begin(self, rows: int) -> None:
        """A batch of so many rows takes its first step now."""
        self._steps = [[] for _ in range(rows)]
        self._clock = time.perf_counter()

    def record(
        self,
        draft: Draft,
        verified: Draft,
        result: StepResult,
        judge: Judge,
        predicted: Tensor | None,
    ) -> None:
        """Note a step that has just committed its tokens.

        Args:
            verified: the part of the draft that was.
            predicted: ``(rows, slots)`` what an acceptance head said of the draft.
        """
        milliseconds = round(1000 * (time.perf_counter() - self._clock), 3)
        tokens, q = draft.tokens.tolist(), draft.chances()
        p = judge(verified.tokens, verified.after).tolist()
        said = None if predicted is None else predicted.tolist()
        for i, row in enumerate(result.rows):
            size, judged = result.drafted[i], result.verified[i]
            places, parents = list(range(size)), draft.parents_of(i)
            if parents is not None:
                places, parents = _path_first(parents[:size], result.nodes[i])
            own = [_figure(p[i][place]) if place < judged else None for place in places]
            drafters = [_figure(q[i][place]) for place in places]
            added = result.committed[i] > result.accepted[i]
            self._steps[row].append(
                StepTrace(
                    drafted=[self._symbols[tokens[i][place]] for place in places],
                    verify_length=judged,
                    accepted=result.accepted[i],
                    bonus=self._symbols[result.last[i]] if added else None,
                    milliseconds=milliseconds,
                    parents=parents,
                    p=own,
                    q=drafters,
                    p_acc=[None if a is None else _ratio(a, b) for a, b in zip(own, drafters)],
                    head=None if said is None else [_figure(value) for value in said[i][:size]],
                )
            )
        self._clock = time.perf_counter()

    def attach(self, hypotheses: list[list[Hypothesis]]) -> None:
        """Give every hypothesis of the batch its steps, as ``trace``."""
        for (hypothesis,), steps in zip(hypotheses, self._steps, strict=True):
            hypothesis["trace"] = steps


def _path_first(parents: list[int], path: list[int]) -> tuple[list[int], list[int]]:
    """Places of drafted tokens, those of nodes in ``path`` first, and their parents' new places.

    Args:
        parents, path: nodes of a tree, of which 0 is the root and i holds drafted token i - 1.
    """
    others = [node for node in range(1, len(parents) + 1) if node not in path]
    order = path + others
    found = {node: place for place, node in enumerate(order)}
    # What has no parent among them follows nothing, and is never accepted.
    return [node - 1 for node in order], [found.get(parents[node - 1], -1) for node in order]


def _figure(value: float) -> float:
    """A probability with six digits, which suffice."""
    return float(f"{value:.6g}")


def _ratio(p: float, q: float) -> float:
    """min(1, p / q), where what has no probability at all is not accepted."""
    return 0.0 if p == 0 else 1.0 if p >= q else _figure(p / q)
