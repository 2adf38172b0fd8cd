"""A JSON object for each sentence and system, under SpecDec++'s names and ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from specdec_plugins.evaluation.systems import AR, DRAFTER
from specdec_plugins.evaluation.table import Result
from specdec_plugins.files.output import JsonObject


def sentence_records(group: Sequence[Result]) -> Iterator[JsonObject]:
    """Yield every sentence of every system, in the order of the text; times are medians.

    SpecDec++ (Huang et al., 2024; its ``evaluate.py``) has ``id``, from 0; ``spec_time``,
    ``target_time`` and ``draft_time``: seconds of this system, of AR and of the drafter alone;
    ``num_mismatched_tokens``: verified but not accepted; ``num_LM_call``: verifier calls; and
    ``generated_length`` of each, EOS included. At a batch size above 1 a time is that of the whole
    batch. Null is what was not measured.
    """
    by_policy = {result.system.policy: result for result in reversed(group)}
    target, draft = by_policy.get(AR), by_policy.get(DRAFTER)
    for result in group:
        speculates = result.system.settings.strategy == "specdec"
        columns = result.runs[0].sentences
        for i, line in enumerate(columns["line"]):
            known = {name: column[i] for name, column in columns.items()}
            rejected = known.get("verified_tokens", 0) - known.get("accepted_tokens", 0)
            yield {
                "id": line - 1,
                "spec_time": _seconds(result, i) if speculates else None,
                "target_time": _seconds(target, i),
                "draft_time": _seconds(draft, i),
                "num_mismatched_tokens": rejected if speculates else None,
                "num_LM_call": known["steps"] if speculates else None,
                "generated_length": known.get("committed_tokens"),
                "generated_length_target": _length(target, i),
                "generated_length_draft": _length(draft, i),
                "system": result.system.name,
                "text": result.place.text.name,
                "batch": result.place.batch,
                "threads": result.place.threads,
                **known,
                "seconds": _seconds(result, i),
            }


def _seconds(result: Result | None, i: int) -> Any:
    return result and median(run.sentences["seconds"][i] for run in result.runs)


def _length(result: Result | None, i: int) -> Any:
    return result and result.runs[0].sentences["committed_tokens"][i]
