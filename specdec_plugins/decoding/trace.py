"""What every step of a sentence drafted, accepted and added: recorded only where asked for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from specdec_plugins.decoding.drafts import Draft
from specdec_plugins.decoding.hypothesis import Hypothesis
from specdec_plugins.decoding.observers import Judge, Observer
from specdec_plugins.decoding.step_result import StepResult, StepTrace

if TYPE_CHECKING:
    from fairseq.data import Dictionary


class TraceRecorder(Observer):
    """Gives every hypothesis its steps, as ``trace``. It costs some copies to the host a step."""

    asks_chances = True

    def __init__(self, tgt_dict: Dictionary) -> None:
        self._symbols = tgt_dict
        self._steps: list[list[StepTrace]] = []
        self._clock = 0.0

    def begin(self, forced: list[int]) -> None:
        """See the base class; the first step begins now."""
        self._steps = [[] for _ in forced]
        self._clock = time.perf_counter()

    def __call__(self, draft: Draft, verified: Draft, result: StepResult, judge: Judge) -> None:
        """See the base class."""
        milliseconds = round(1000 * (time.perf_counter() - self._clock), 3)
        tokens, q = draft.tokens.tolist(), draft.chances()
        p = judge.probabilities(verified).tolist()
        said = None if judge.predicted is None else judge.predicted.tolist()
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

    def end(self, hypotheses: list[list[Hypothesis]]) -> None:
        """See the base class."""
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
    """Return a probability with six digits, which suffice."""
    return float(f"{value:.6g}")


def _ratio(p: float, q: float) -> float:
    """min(1, p / q), where what has no probability at all is not accepted."""
    return 0.0 if p == 0 else 1.0 if p >= q else _figure(p / q)
