"""A JSON object a sentence and system, under the names of SpecDec++'s evaluation and our own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from statistics import median

from specdec_plugins.evaluation.runs import Run
from specdec_plugins.evaluation.summary import Group, SystemSummary
from specdec_plugins.evaluation.systems import AR, DRAFTER


def file_name(system: SystemSummary, group: Group) -> str:
    """Such as ``acceptance-head-0.7-k-12.cpu-batch1.jsonl``."""
    return f"{re.sub(r'[^A-Za-z0-9.-]+', '-', system.name)}.{group.label}.jsonl"


def sentence_records(system: SystemSummary, group: Group) -> Iterator[dict[str, object]]:
    """Every sentence, in the order of the text; times are medians over rounds, counts the last's.
    Of sampled output, every sentence once for each seed.

    Under the names of SpecDec++ (Huang et al., 2024; its ``evaluate.py``): ``id`` (from 0),
    ``spec_time``, ``target_time`` and ``draft_time`` (seconds of this system, of AR and of the
    drafter alone, the latter two in the same rounds), ``num_mismatched_tokens`` (verified but not
    accepted), ``num_LM_call`` (verifier calls), ``generated_length`` and those of AR and of the
    drafter, EOS included. AR and the drafter alone have no ``spec_time``, mismatches and calls:
    null, as is whatever was not measured.

    At a batch size above 1 a sentence's time is that of its whole batch: it is the time to wait for
    the sentence, not its share of the work. ``trace`` has an object a step where steps were
    recorded (the fields of :class:`StepTrace`), else it is null.
    """
    for runs in [[run] for run in system.runs] if group.sampled else [system.runs]:
        yield from _records(runs, group)


def _records(runs: Sequence[Run], group: Group) -> Iterator[dict[str, object]]:
    rounds = {run.round for run in runs}
    target, draft = (
        [run for other in group.of(policy) for run in other.runs if run.round in rounds]
        for policy in (AR, DRAFTER)
    )
    own = runs[-1].by_sentence
    outputs = next((r.by_sentence.output for r in runs if r.by_sentence.output), [])
    traces = next((r.by_sentence.trace for r in runs if r.by_sentence.trace), [])
    for i, line in enumerate(own.line):
        yield {
            "id": line - 1,
            **_their_names(runs, target, draft, i),
            "seconds": _seconds(runs, i),
            "steps": own.steps[i],
            "drafted_tokens": own.drafted_tokens[i],
            "verified_tokens": own.verified_tokens[i],
            "accepted_tokens": own.accepted_tokens[i],
            "committed_tokens": own.committed_tokens[i],
            "acceptance_length": own.committed_tokens[i] / own.steps[i],
            "acceptance_rate": own.accepted_tokens[i] / max(own.verified_tokens[i], 1),
            "rounds": len(runs),
            "seed": runs[0].round if group.sampled else None,
            "output": outputs[i] if outputs else None,
            "trace": [asdict(step) for step in traces[i]] if traces else None,
            **runs[0].conditions,
        }


def _their_names(
    runs: Sequence[Run], target: Sequence[Run], draft: Sequence[Run], i: int
) -> dict[str, object]:
    """What SpecDec++ tells of sentence ``i``, but its ``id``."""
    own = runs[-1].by_sentence
    speculative = runs[0].policy not in (AR, DRAFTER)
    mismatched = own.verified_tokens[i] - own.accepted_tokens[i]
    return {
        "spec_time": _seconds(runs, i) if speculative else None,
        "target_time": _seconds(target, i),
        "draft_time": _seconds(draft, i),
        "num_mismatched_tokens": mismatched if speculative else None,
        "num_LM_call": own.steps[i] if speculative else None,
        "generated_length": own.committed_tokens[i],
        "generated_length_target": _length(target, i),
        "generated_length_draft": _length(draft, i),
    }


def _seconds(runs: Sequence[Run], i: int) -> float | None:
    return round(median(run.by_sentence.seconds[i] for run in runs), 6) if runs else None


def _length(runs: Sequence[Run], i: int) -> int | None:
    return runs[-1].by_sentence.committed_tokens[i] if runs else None
