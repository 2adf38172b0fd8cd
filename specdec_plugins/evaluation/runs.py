"""A run of one system over the text: a line of ``runs.jsonl``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields

import msgspec

from specdec_plugins.decoding.acceptance.rules import SAMPLING
from specdec_plugins.decoding.step_result import StepTrace
from specdec_plugins.evaluation.systems import AR, DRAFTER

MOST = 1e18
"""No figure of a run is larger."""


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
    """Its translation; where it is the same in every round, only in round 1."""
    accepted_by_step: list[list[int]] = field(default_factory=list)
    """How many drafted tokens each step accepted; where there is an output."""
    trace: list[list[StepTrace]] = field(default_factory=list)
    """Its steps, as one more pass took them, which is not timed; only where that is asked for, and
    where there is an output."""

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
    text: str
    """Its name; empty of a text that is alone."""
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
    temperature: float
    """What the verifier's scores were divided by."""
    batch: int
    device: str
    engine: str
    precision: str
    threads: int
    round: int
    """From 1: a round is one run of every system at this batch size, one after another. Of sampled
    output it is the seed, of which every round has one of its own."""
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
    acceptance_rate: float
    """Accepted per verified drafted token; 0 where none was verified."""
    verification_rate: float
    """Verifier calls per committed token."""
    discard_rate: float
    """Tokens drafted but not accepted, per committed token: those that were never verified too."""
    verified_discard_rate: float
    """Tokens verified but not accepted, per committed token. SpecDec++ verifies all that it drafts,
    so that its discard rate is both."""
    tokens_per_second: float
    memory: int | None
    """Bytes: what loading it added to the process, and the most that decoding added to that, as
    :mod:`specdec_plugins.evaluation.memory` measures it; None where that cannot be known."""
    by_sentence: SentenceColumns

    @property
    def sampled(self) -> bool:
        """Whether tokens were drawn: output then differs from round to round and system to
        system."""
        return SAMPLING.name in self.rule_options

    @property
    def conditions(self) -> dict[str, object]:
        """What belongs beside every number."""
        return {
            "system": self.system,
            "text": self.text or None,
            "controller": self.policy if self.policy not in (AR, DRAFTER) else None,
            "k": self.block_size,
            "threshold": self.threshold,
            "tree_nodes": self.tree_nodes,
            "batch": self.batch,
            "rule": self.rule,
            **self.rule_options,
            "temperature": self.temperature,
            "device": self.device,
            "engine": self.engine,
            "precision": self.precision,
            "threads": self.threads,
        }

    @property
    def group(self) -> tuple[str, str, str, int, int, str]:
        """Device, engine, precision, threads, batch size and text: what is compared only within
        itself."""
        return self.device, self.engine, self.precision, self.threads, self.batch, self.text

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
        optional = ("output", "accepted_by_step", "trace")
        columns = [by_name[name] for name in by_name if name not in optional or by_name[name]]
        numbers = [value for value in vars(run).values() if isinstance(value, (int, float))]
        for column in columns:
            numbers += [value for value in column if isinstance(value, (int, float))]
        if len({len(column) for column in columns}) > 1:
            raise ValueError("columns of different lengths")
        if not all(0 <= number <= MOST for number in numbers) or 0 in run.by_sentence.steps:
            raise ValueError("a number in it cannot be")
        return run
