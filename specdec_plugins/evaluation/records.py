"""A JSON object a sentence and system, under the names of SpecDec++'s evaluation and our own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from specdec_plugins.evaluation.runs import Run
from specdec_plugins.evaluation.summary import Group, SystemSummary
from specdec_plugins.evaluation.systems import AR, DRAFTER
from specdec_plugins.files.output import JsonObject

COLUMNS = (
    *("steps", "drafted_tokens", "verified_tokens", "accepted_tokens", "committed_tokens"),
    "output",
)


def file_name(one: SystemSummary, group: Group) -> str:
    """Return the name of its file, such as ``acceptance-head-0.7-k-12.cpu-batch1.jsonl``."""
    return f"{re.sub(r'[^A-Za-z0-9.-]+', '-', group.called(one))}.{group.label}.jsonl"


def sentence_records(one: SystemSummary, group: Group) -> Iterator[JsonObject]:
    """Every sentence, in the order of the text; times are medians over rounds, counts the last's.
    Of sampled output, every sentence once for each seed.

    Under the names of SpecDec++ (Huang et al., 2024; its ``evaluate.py``): ``id`` (from 0),
    ``spec_time``, ``target_time`` and ``draft_time`` (seconds of this system, of AR and of the
    drafter alone, the latter two in the same rounds), ``num_mismatched_tokens`` (verified but not
    accepted), ``num_LM_call`` (verifier calls), ``generated_length`` and those of AR and of the
    drafter, EOS included. What does not speculate has no ``spec_time``, mismatches and calls:
    null, as is whatever was not measured.

    At a batch size above 1 a sentence's time is that of its whole batch: it is the time to wait for
    the sentence, not its share of the work.
    """
    for runs in [[run] for run in one.runs] if group.sampled else [one.runs]:
        rounds = {run.round for run in runs}
        others = {}
        for policy in (AR, DRAFTER):
            found = group.counterpart(one, policy)
            others[policy] = [r for r in found.runs if r.round in rounds] if found else []
        conditions = group.conditions_of(one)
        for i, line in enumerate(runs[-1].by_sentence.line):
            yield {
                "id": line - 1,
                **_their_names(runs, others, i, one.system.options is not None),
                **_our_names(runs, i),
                "seed": runs[0].round if group.sampled else None,
                **conditions,
            }


def _our_names(runs: Sequence[Run], i: int) -> JsonObject:
    found: JsonObject = {name: _last(runs, name, i) for name in COLUMNS}
    known = found["steps"] is not None
    return {
        "seconds": _seconds(runs, i),
        **found,
        "acceptance_length": found["committed_tokens"] / found["steps"] if known else None,
        "acceptance_rate": (
            found["accepted_tokens"] / max(found["verified_tokens"], 1) if known else None
        ),
        "rounds": len(runs),
    }


def _their_names(
    runs: Sequence[Run], others: dict[str, list[Run]], i: int, speculative: bool
) -> JsonObject:
    """Return what SpecDec++ tells of sentence ``i``, but its ``id``."""
    target, draft = others[AR], others[DRAFTER]
    verified, accepted = (_last(runs, f"{name}_tokens", i) for name in ("verified", "accepted"))
    return {
        "spec_time": _seconds(runs, i) if speculative else None,
        "target_time": _seconds(target, i),
        "draft_time": _seconds(draft, i),
        "num_mismatched_tokens": verified - accepted if speculative else None,
        "num_LM_call": _last(runs, "steps", i) if speculative else None,
        "generated_length": _last(runs, "committed_tokens", i),
        "generated_length_target": _last(target, "committed_tokens", i),
        "generated_length_draft": _last(draft, "committed_tokens", i),
    }


def _seconds(runs: Sequence[Run], i: int) -> float | None:
    return round(median(run.by_sentence.seconds[i] for run in runs), 6) if runs else None


def _last(runs: Sequence[Run], name: str, i: int) -> Any:
    """Return a column's value in the last run that has the column."""
    columns = [getattr(run.by_sentence, name) for run in runs]
    return next((column[i] for column in reversed(columns) if column), None)
