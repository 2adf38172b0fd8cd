"""Record every step of a sentence."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from specdec_plugins.decoding.step_result import (
    Hypothesis,
    Judgement,
    Observer,
    StepResult,
    StepTrace,
)

if TYPE_CHECKING:
    from fairseq.data import Dictionary


class TraceRecorder(Observer):
    """Adds ``trace`` to every hypothesis, for some copies to the host at each step."""

    needs_judgement = True

    def __init__(self, tgt_dict: Dictionary) -> None:
        self._symbols = tgt_dict
        self._steps: list[list[StepTrace]] = []
        self._clock = 0.0

    def begin(self, forced: list[int]) -> None:
        self._steps = [[] for _ in forced]
        self._clock = time.perf_counter()

    def step(self, result: StepResult, judgement: Judgement | None = None) -> None:
        assert judgement is not None
        milliseconds = round(1000 * (time.perf_counter() - self._clock), 3)
        draft, verified, predicted = judgement.draft, judgement.verified, judgement.predicted
        tokens, all_q = draft.tokens.tolist(), draft.chances()
        judged = judgement.verification, verified.tokens, verified.after
        all_p = judgement.rule.probabilities_of(*judged).tolist()
        drawn = judgement.rule.draws
        head = None if predicted is None else predicted.tolist()
        for i, row in enumerate(result.rows):
            size, count = result.drafted[i], result.verified[i]
            order, parents = list(range(size)), draft.parents_of(i)
            if parents is not None:
                order, parents = _path_first(parents[:size], result.nodes[i])
            p = [_rounded(all_p[i][slot]) if slot < count else None for slot in order]
            q = [_rounded(all_q[i][slot]) for slot in order]
            has_bonus = result.committed[i] > result.accepted[i]
            step = StepTrace(
                drafted=[self._symbols[tokens[i][slot]] for slot in order],
                verify_length=count,
                accepted=result.accepted[i],
                bonus=self._symbols[result.last[i]] if has_bonus else None,
                milliseconds=milliseconds,
                parents=parents,
                p=p,
                q=q,
                p_acc=[a if a is None else _ratio(a, b) for a, b in zip(p, q)] if drawn else None,
                head=None if head is None else [_rounded(value) for value in head[i][:size]],
            )
            self._steps[row].append(step)
        self._clock = time.perf_counter()

    def end(self, hypotheses: list[list[Hypothesis]]) -> None:
        for (hypothesis,), steps in zip(hypotheses, self._steps, strict=True):
            hypothesis["trace"] = steps


def _path_first(parents: list[int], path: list[int]) -> tuple[list[int], list[int]]:
    """Order a tree's tokens, those of ``path`` first; return their old indices and new parents.

    Args:
        parents, path: nodes, of which 0 is the root and i holds drafted token i - 1.
    """
    order = path + [node for node in range(1, len(parents) + 1) if node not in path]
    new = {node: index for index, node in enumerate(order)}
    return [node - 1 for node in order], [new.get(parents[node - 1], -1) for node in order]


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def _ratio(p: float, q: float) -> float:
    """Return min(1, p / q), which is 0 if both are."""
    return 0.0 if p == 0 else 1.0 if p >= q else _rounded(p / q)
