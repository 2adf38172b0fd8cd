"""What every step of a sentence drafted, accepted and added: recorded only where asked for."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdec_plugins.decoding.drafts import Draft
from specdec_plugins.decoding.hypothesis import Hypothesis
from specdec_plugins.decoding.step_result import StepResult

if TYPE_CHECKING:
    from fairseq.data import Dictionary


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
    the end of the encoders, or of the step before, until its tokens are known on the host."""
    parents: list[int] | None = None
    """Of a tree: the place in ``drafted`` of the token before each, -1 where that is the last one
    of the step before (and for ``<pad>``, which only fills up). The accepted tokens come first,
    then the others by probability. None where each token follows the one before it."""

    @property
    def committed(self) -> int:
        """Tokens that the step committed, bonus token included."""
        return self.accepted + (self.bonus is not None)


class TraceRecorder:
    """Writes down the steps of one batch after another. It costs a copy to the host a step."""

    def __init__(self, tgt_dict: Dictionary) -> None:
        self._symbols = tgt_dict
        self._steps: list[list[StepTrace]] = []
        self._clock = 0.0

    def begin(self, rows: int) -> None:
        """A batch of so many rows takes its first step now."""
        self._steps = [[] for _ in range(rows)]
        self._clock = time.perf_counter()

    def record(self, draft: Draft, result: StepResult) -> None:
        """Note a step that has just committed its tokens."""
        milliseconds = round(1000 * (time.perf_counter() - self._clock), 3)
        tokens = draft.tokens.tolist()
        for i, row in enumerate(result.rows):
            drafted = [self._symbols[token] for token in tokens[i][: result.drafted[i]]]
            parents = draft.parents_of(i)
            if parents is not None:
                drafted, parents = _path_first(drafted, parents, result.nodes[i])
            added = result.committed[i] > result.accepted[i]
            self._steps[row].append(
                StepTrace(
                    drafted=drafted,
                    verify_length=result.verified[i],
                    accepted=result.accepted[i],
                    bonus=self._symbols[result.last[i]] if added else None,
                    milliseconds=milliseconds,
                    parents=parents,
                )
            )
        self._clock = time.perf_counter()

    def attach(self, hypotheses: list[list[Hypothesis]]) -> None:
        """Give every hypothesis of the batch its steps, as ``trace``."""
        for (hypothesis,), steps in zip(hypotheses, self._steps, strict=True):
            hypothesis["trace"] = steps


def _path_first(
    drafted: list[str], parents: list[int], path: list[int]
) -> tuple[list[str], list[int]]:
    """Drafted tokens and their parents' places, those of nodes in ``path`` first.

    Args:
        parents, path: nodes of a tree, of which 0 is the root and i holds ``drafted[i - 1]``.
    """
    others = [node for node in range(1, len(drafted) + 1) if node not in path]
    order = path + others
    places = {node: place for place, node in enumerate(order)}
    # What has no parent among them follows nothing, and is never accepted.
    found = [places.get(parents[node - 1], -1) for node in order]
    return [drafted[node - 1] for node in order], found
