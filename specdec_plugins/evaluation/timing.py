"""A timed run of one system over the text."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

import torch

from specdec_plugins.decoding.drafts import Draft
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.observers import Judge, Observer
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.decoding.step_result import StepResult, StepTrace
from specdec_plugins.decoding.trace import TraceRecorder
from specdec_plugins.engines.engine import described
from specdec_plugins.engines.openvino_core import computed_precision
from specdec_plugins.evaluation.memory import MemoryGrowth
from specdec_plugins.evaluation.runs import Run, SentenceColumns
from specdec_plugins.evaluation.systems import System
from specdec_plugins.files.input import Line
from specdec_plugins.files.json_object import JsonObject
from specdec_plugins.inference.report import device_name
from specdec_plugins.inference.settings import TRACED
from specdec_plugins.inference.text import TextCodec
from specdec_plugins.inference.translator import Translation, Translator

Batches = list[list[Line]]


class RowCounts(Observer):
    """Drafted and verified tokens of each row of the batch decoded last."""

    def begin(self, rows: int) -> None:
        self.drafted, self.verified = [0] * rows, [0] * rows

    def __call__(self, draft: Draft, verified: Draft, result: StepResult, judge: Judge) -> None:
        for row, *counts in zip(result.rows, result.drafted, result.verified):
            self.drafted[row] += counts[0]
            self.verified[row] += counts[1]


def plan_batches(codec: TextCodec, lines: Sequence[Line], size: int) -> Batches:
    """The lines with words in batches, as :func:`split_by_length` does."""
    encoded = [(line, codec.encode(line)) for line in lines]
    worded = [(line, len(ids)) for line, ids in encoded if ids is not None]
    batches = split_by_length([length for _, length in worded], size)
    return [[worded[i][0] for i in batch] for batch in batches]


def split_by_length(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Places of sentences in batches, the longest sentences first: a batch that is too large
    fails at once. At batch 1 they are in the order of the text."""
    order = list(range(len(lengths)))
    if size > 1:
        order.sort(key=lambda i: -lengths[i])
    return [order[start : start + size] for start in range(0, len(order), size)]


def warm_up(translator: Translator, batches: Batches) -> None:
    """Decode for nothing. What a controller learns from it and measures stays with it."""
    for batch in batches:
        list(translator.translate(batch))


def timed_run(
    system: System,
    translator: Translator,
    batches: Batches,
    number: int,
    text: str = "",
    trace: bool = False,
    held: int | None = None,
) -> Run:
    """Decode all batches once, as round ``number``, which is the seed where tokens are drawn.

    Args:
        text: the name of what is decoded.
        trace: where there are outputs, decode them once more, untimed, to record what steps did.
        held: bytes that the system has in memory.
    """
    began = datetime.now(timezone.utc).isoformat(timespec="seconds")
    generator = _own_generator(translator)
    log, counts = DecodingStatistics(), RowCounts()
    generator.statistics, generator.observers = log, [counts]
    columns, settings = SentenceColumns(), translator.settings
    seed = number if settings.rule.draws else None
    outputs = number == 1 or seed is not None
    growth = MemoryGrowth(settings.device)
    for batch in batches:
        before = log.total_seconds
        results = list(translator.translate(batch, seed=seed))
        columns.drafted_tokens += counts.drafted
        columns.verified_tokens += counts.verified
        _note(columns, batch, results, log.total_seconds - before, outputs)
    generator.observers = []
    most = growth.most()
    if trace and outputs and settings.strategy in TRACED:
        columns.trace = _trace(translator, batches, seed)
    columns.sort()
    return Run(
        system=system.name,
        text=text,
        policy=system.policy,
        kind=system.kind,
        block_size=system.block_size,
        threshold=system.threshold,
        tree_nodes=system.tree_nodes,
        asks_head=system.asks_head,
        options=system.describe(),
        rule=str(settings.rule),
        rule_options=settings.rule.values,
        temperature=settings.limits.temperature,
        batch=settings.batch,
        device=device_name(settings.device),
        engine=translator.engine,
        precision=_arithmetic(translator),
        threads=torch.get_num_threads(),
        round=number,
        began=began,
        memory=None if held is None or most is None else held + most,
        by_sentence=columns,
        **_figures(log),
    )


def _trace(translator: Translator, batches: Batches, seed: int | None) -> list[list[StepTrace]]:
    """What the steps of every sentence do, in the order of decoding."""
    generator = _own_generator(translator)
    generator.statistics = DecodingStatistics()
    generator.observers = [TraceRecorder(translator.codec.target)]
    found = [result.trace for batch in batches for result in translator.translate(batch, seed=seed)]
    generator.observers = []
    return [trace.steps for trace in found if trace is not None]


def _own_generator(translator: Translator) -> SpeculativeGenerator:
    assert isinstance(translator.generator, SpeculativeGenerator)
    return translator.generator


def _arithmetic(translator: Translator) -> str:
    """What is computed in. What drafts nothing is named like the systems that it is compared
    with."""
    of_drafts = translator.settings.drafter_precision
    if translator.settings.drafts or of_drafts is None:
        return translator.arithmetic
    return described(translator.arithmetic, computed_precision(of_drafts))


def _note(
    columns: SentenceColumns,
    batch: list[Line],
    results: list[Translation],
    seconds: float,
    outputs: bool,
) -> None:
    columns.line += [line.number for line in batch]
    columns.seconds += [round(seconds, 6)] * len(batch)
    columns.steps += [len(result.accepted) for result in results]
    columns.accepted_tokens += [sum(result.accepted) for result in results]
    columns.committed_tokens += [result.tokens for result in results]
    if outputs:
        columns.output += [result.text for result in results]
        columns.accepted_by_step += [result.accepted for result in results]


def _figures(log: DecodingStatistics) -> JsonObject:
    # The drafter alone accepts without verifying.
    unwanted = max(0, log.verified_tokens - log.accepted_tokens)
    return {
        "sentences": log.sentences,
        "seconds": log.total_seconds,
        "control_seconds": log.stopwatch.seconds().get("control", 0.0),
        "committed_tokens": log.committed_tokens,
        "steps": log.steps,
        "drafted_tokens": log.drafted_tokens,
        "verified_tokens": log.verified_tokens,
        "accepted_tokens": log.accepted_tokens,
        "verifier_calls": log.verifier_calls,
        "drafter_calls": log.drafter_calls,
        "acceptance_length": log.acceptance_length,
        "acceptance_rate": log.acceptance_rate,
        "verification_rate": log.verification_rate,
        "discard_rate": log.discard_rate,
        "verified_discard_rate": unwanted / max(log.committed_tokens, 1),
        "tokens_per_second": log.tokens_per_second,
    }
