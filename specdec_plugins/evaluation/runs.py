"""A timed run of one system over the text, and what it leaves behind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone

import msgspec
import torch

from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.evaluation.systems import AR, DRAFTER, System
from specdec_plugins.inference.report import device_name
from specdec_plugins.inference.settings import JsonObject
from specdec_plugins.inference.text import Line, TextCodec
from specdec_plugins.inference.translator import Translation, Translator

MOST = 1e18
"""No figure of a run is larger."""

Batches = list[list[Line]]


@dataclass
class StepLog(DecodingStatistics):
    """Statistics that also remember what each step drafted and verified, at no cost to speak of."""

    lengths: list[tuple[list[int], list[int]]] = field(default_factory=list)
    """Draft lengths and verify lengths of the rows that a step had."""

    def count_step(
        self,
        accepted: list[int],
        committed: list[int],
        drafted: list[int],
        verified: list[int],
        *calls: int,
    ) -> None:
        """As in :class:`DecodingStatistics`."""
        super().count_step(accepted, committed, drafted, verified, *calls)
        self.lengths.append((drafted, verified))

    def take(self, steps: Sequence[int]) -> tuple[list[int], list[int]]:
        """Drafted and verified tokens of each row of the batch just decoded; then forget them.

        Args:
            steps: how many each row took. Rows keep their order and leave when they are finished,
                so that this tells which rows a step had.
        """
        drafted, verified = [0] * len(steps), [0] * len(steps)
        for step, lengths in enumerate(self.lengths):
            rows = [row for row, taken in enumerate(steps) if taken > step]
            for row, *counts in zip(rows, *lengths, strict=True):
                drafted[row] += counts[0]
                verified[row] += counts[1]
        self.lengths = []
        return drafted, verified


@dataclass
class SentenceColumns:
    """Of every line with words, in the order of the text: a list each, all of one length."""

    line: list[int] = field(default_factory=list)
    """Its number in the text, from 1."""
    seconds: list[float] = field(default_factory=list)
    """Seconds of decoding its batch: at batch 1 its own, else shared with the rest of the batch."""
    steps: list[int] = field(default_factory=list)
    drafted_tokens: list[int] = field(default_factory=list)
    verified_tokens: list[int] = field(default_factory=list)
    accepted_tokens: list[int] = field(default_factory=list)
    committed_tokens: list[int] = field(default_factory=list)
    """EOS included."""
    output: list[str] = field(default_factory=list)
    """Its translation; only in round 1."""

    def sort(self) -> None:
        """From the order of decoding to that of the text."""
        order = sorted(range(len(self.line)), key=self.line.__getitem__)
        for column in fields(self):
            values = getattr(self, column.name)
            setattr(self, column.name, [values[i] for i in order] if values else [])


@dataclass(frozen=True)
class Run:
    """A system's way through the text: a line of ``runs.jsonl``. Times are of decoding alone."""

    system: str
    policy: str
    """``AR``, ``drafter``, or the controller."""
    kind: str
    """The policy, or which kind of it."""
    block_size: int | None
    """k."""
    threshold: float | None
    tree_nodes: int | None
    """The most nodes of a tree; None where chains are verified."""
    asks_head: bool
    """Whether an acceptance head is asked about drafts."""
    options: dict[str, bool | int | float | str | None]
    """All of the controller's."""
    rule: str
    """The acceptance rule, in words."""
    rule_options: dict[str, bool | int | float | str | None]
    """What to give to have it: β, and τ in nats."""
    batch: int
    device: str
    engine: str
    precision: str
    threads: int
    round: int
    """From 1: a round is one run of every system at this batch size, one after another."""
    began: str
    """Date and time, UTC."""
    sentences: int
    """With words."""
    seconds: float
    control_seconds: float
    """Of these, what the controller's answers took."""
    committed_tokens: int
    steps: int
    drafted_tokens: int
    verified_tokens: int
    accepted_tokens: int
    verifier_calls: int
    drafter_calls: int
    acceptance_length: float
    """Committed tokens a step, bonus token included."""
    verification_rate: float
    """Verifier calls per committed token."""
    discard_rate: float
    """Tokens drafted but not accepted, per committed token: those that were never verified too."""
    verified_discard_rate: float
    """Tokens verified but not accepted, per committed token. SpecDec++ verifies all that it drafts,
    so that its discard rate is both."""
    tokens_per_second: float
    by_sentence: SentenceColumns

    @property
    def conditions(self) -> dict[str, object]:
        """What belongs beside every number."""
        return {
            "system": self.system,
            "controller": self.policy if self.policy not in (AR, DRAFTER) else None,
            "k": self.block_size,
            "threshold": self.threshold,
            "tree_nodes": self.tree_nodes,
            "batch": self.batch,
            "rule": self.rule,
            **self.rule_options,
            "device": self.device,
            "engine": self.engine,
            "precision": self.precision,
            "threads": self.threads,
        }

    @property
    def group(self) -> tuple[str, str, str, int, int]:
        """Device, engine, precision, threads and batch size: what is compared only within
        itself."""
        return self.device, self.engine, self.precision, self.threads, self.batch

    def to_json(self) -> str:
        """The line, without a line feed."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, line: bytes) -> Run:
        """
        Raises:
            ValueError: this is no such line.
        """
        try:
            # Not by msgspec, which knows no infinity: an option's value may be.
            given = json.loads(line)
            if not isinstance(given, dict) or set(given) != {field.name for field in fields(cls)}:
                raise ValueError("not the fields of a run of this version")
            run = msgspec.convert(given, cls)
        except RecursionError as error:
            raise ValueError(str(error)) from error
        by_name = vars(run.by_sentence)
        columns = [by_name[name] for name in by_name if name != "output" or by_name[name]]
        numbers = [value for value in vars(run).values() if isinstance(value, (int, float))]
        for column in columns:
            numbers += [value for value in column if not isinstance(value, str)]
        if len({len(column) for column in columns}) > 1:
            raise ValueError("columns of different lengths")
        if not all(0 <= number <= MOST for number in numbers) or 0 in run.by_sentence.steps:
            raise ValueError("a number in it cannot be")
        return run


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


def timed_run(system: System, translator: Translator, batches: Batches, number: int) -> Run:
    """Decode all batches once, as round ``number``."""
    began = datetime.now(timezone.utc).isoformat(timespec="seconds")
    log = translator.generator.statistics = StepLog()
    columns = SentenceColumns()
    for batch in batches:
        before = log.total_seconds
        results = list(translator.translate(batch))
        _note(columns, batch, results, log, log.total_seconds - before, number == 1)
    columns.sort()
    settings = translator.settings
    return Run(
        system=system.name,
        policy=system.policy,
        kind=system.kind,
        block_size=system.block_size,
        threshold=system.threshold,
        tree_nodes=system.tree_nodes,
        asks_head=system.asks_head,
        options=system.describe(),
        rule=str(settings.rule),
        rule_options=settings.rule.values,
        batch=settings.batch,
        device=device_name(settings.device),
        engine=translator.engine,
        precision=settings.precision,
        threads=torch.get_num_threads(),
        round=number,
        began=began,
        by_sentence=columns,
        **_figures(log),
    )


def _note(
    columns: SentenceColumns,
    batch: list[Line],
    results: list[Translation],
    log: StepLog,
    seconds: float,
    outputs: bool,
) -> None:
    drafted, verified = log.take([len(result.accepted) for result in results])
    columns.line += [line.number for line in batch]
    columns.seconds += [round(seconds, 6)] * len(batch)
    columns.steps += [len(result.accepted) for result in results]
    columns.drafted_tokens += drafted
    columns.verified_tokens += verified
    columns.accepted_tokens += [sum(result.accepted) for result in results]
    columns.committed_tokens += [result.tokens for result in results]
    if outputs:
        columns.output += [result.text for result in results]


def _figures(log: StepLog) -> JsonObject:
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
        "verification_rate": log.verification_rate,
        "discard_rate": log.discard_rate,
        "verified_discard_rate": unwanted / max(log.committed_tokens, 1),
        "tokens_per_second": log.tokens_per_second,
    }
