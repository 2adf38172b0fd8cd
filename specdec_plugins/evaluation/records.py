"""Results for other programs: medians, and a record of each sentence as SpecDec++ writes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from statistics import median

import msgspec

from specdec_plugins.evaluation.table import Result, counterpart
from specdec_plugins.files.output import JsonObject, write_json, write_whole
from specdec_plugins.inference.systems import AR, DRAFTER


def write_records(groups: Sequence[Sequence[Result]], folder: Path) -> None:
    """Write ``medians.json``, and ``sentences.jsonl`` with a line for each record."""
    write_json(folder / "medians.json", [medians(result) for group in groups for result in group])
    records = chain.from_iterable(map(sentence_records, groups))
    encoder = msgspec.json.Encoder()
    write_whole(folder / "sentences.jsonl", [encoder.encode_lines(records)])


def sentence_records(group: Sequence[Result]) -> Iterator[JsonObject]:
    """Yield a record for each sentence of each system, with the keys of SpecDec++'s evaluation.

    ``spec_time``, ``target_time`` and ``draft_time`` are seconds: of this system, of ``AR`` and of
    ``drafter``, medians over rounds; of drawn output those of the first seed. ``id`` counts from 0.
    A figure is None where the system does not speculate, or the other one was not measured.
    """
    for result in group:
        target = counterpart(result, group, AR)
        draft = counterpart(result, group, DRAFTER)
        for index, figures in enumerate(result.runs[0].sentences):
            sentence = result.where.text.sentences[index]
            yield {
                **_conditions(result),
                "id": sentence.line.number - 1,
                "spec_time": None if figures.calls is None else _seconds(result, index),
                "target_time": _seconds(target, index),
                "draft_time": _seconds(draft, index),
                "num_mismatched_tokens": figures.mismatched,
                "num_LM_call": figures.calls,
                "generated_length": figures.length,
                "generated_length_target": _length(target, index),
                "generated_length_draft": _length(draft, index),
            }


def medians(result: Result) -> JsonObject:
    """Return the medians over rounds of all figures, under the names of the documentation."""
    first = result.runs[0]
    return {
        **_conditions(result),
        "engine": first.engine,
        "precision": first.precision,
        "rounds": len(result.runs),
        **{name: result.middle(name) for name in first.figures()},
    }


def _conditions(result: Result) -> JsonObject:
    return {
        "system": result.system,
        "text": result.where.text.name,
        "batch": result.where.batch,
        "threads": result.where.threads,
    }


def _seconds(result: Result | None, index: int) -> float | None:
    if result is None:
        return None
    runs = result.runs[:1] if result.settings.rule.draws else result.runs
    return median(run.sentences[index].seconds for run in runs)


def _length(result: Result | None, index: int) -> int | None:
    if result is None:
        return None
    return result.runs[0].sentences[index].length
