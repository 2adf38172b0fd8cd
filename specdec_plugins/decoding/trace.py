"""What every step of a sentence drafted, accepted and added: recorded only where asked for."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specdec_plugins.decoding.batch import StepReport
from specdec_plugins.decoding.controllers import Draft


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

    def __init__(self, tgt_dict: Any) -> None:
        self._symbols = tgt_dict
        self._steps: list[list[StepTrace]] = []
        self._clock = 0.0

    def begin(self, rows: int) -> None:
        """A batch of so many rows takes its first step now."""
        self._steps = [[] for _ in range(rows)]
        self._clock = time.perf_counter()

    def record(
        self,
        rows: list[int],
        draft: Draft,
        last: Tensor,
        report: StepReport,
    ) -> None:
        """Note a step that has just committed its tokens.

        Args:
            rows: where each row stands in the batch that began.
            draft: what was drafted, of which a row's own are the first.
            last: ``(rows,)`` the last token of each row that the step committed.
            report: what the step did.
        """
        milliseconds = round(1000 * (time.perf_counter() - self._clock), 3)
        tokens = torch.cat([draft.tokens, last[:, None]], dim=1).tolist()
        if draft.tree is not None and report.path is not None:
            tree, ways = draft.tree.host_parents.tolist(), report.path.nodes.tolist()
        for i, row in enumerate(rows):
            *drafted, bonus = (self._symbols[token] for token in tokens[i])
            accepted, parents = report.accepted[i], None
            drafted = drafted[: report.drafted[i]]
            if report.path is not None:
                drafted, parents = _path_first(drafted, tree[i], ways[i][1 : accepted + 1])
            self._steps[row].append(
                StepTrace(
                    drafted=drafted,
                    verify_length=report.verified[i],
                    accepted=accepted,
                    bonus=bonus if report.committed[i] > accepted else None,
                    milliseconds=milliseconds,
                    parents=parents,
                )
            )
        self._clock = time.perf_counter()

    def attach(self, hypotheses: list[list[dict[str, Any]]]) -> None:
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
