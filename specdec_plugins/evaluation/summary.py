"""What runs come to: over rounds medians, over seeds means; ratios within rounds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from specdec_plugins.evaluation.runs import Run
from specdec_plugins.evaluation.systems import System
from specdec_plugins.evaluation.texts import Sentences
from specdec_plugins.files.errors import counted
from specdec_plugins.files.output import JsonObject

RATES = (
    *("acceptance_length", "acceptance_rate", "verification_rate"),
    *("discard_rate", "verified_discard_rate"),
)


@dataclass(frozen=True)
class Spread:
    """The median, the mean, the least and the greatest of one number per round."""

    median: float
    mean: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """Return the spread of the values that are known; None of no values."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        return cls(median(known), fmean(known), min(known), max(known), len(known))

    def middle(self, sampled: bool) -> float:
        """Return what stands for all: the mean where rounds are seeds, whose differences are no
        faults; else the median, since a machine may have been busy in some."""
        return self.mean if sampled else self.median


@dataclass(frozen=True)
class SystemSummary:
    """A system on a text, at one batch size on one device."""

    system: System
    runs: Sequence[Run]
    """The runs by round."""

    @property
    def first(self) -> Run:
        """A run that tells what all share."""
        return self.runs[0]

    @property
    def block_size(self) -> int | None:
        """k, as it was trained where nothing else was asked for."""
        return self.first.block_size

    @property
    def memory(self) -> int | None:
        """Bytes, at most: see :class:`Run`."""
        return max((run.memory for run in self.runs if run.memory is not None), default=None)

    @property
    def output(self) -> list[str]:
        """The translations of the first round that has any."""
        return next((r.by_sentence.output for r in self.runs if r.by_sentence.output), [])

    def spread(self, name: str) -> Spread | None:
        """Return a figure of its runs over rounds, by its name; None where it has none."""
        return Spread.of(getattr(run, name) for run in self.runs)

    def middle(self, name: str) -> float | None:
        """Return what stands for a figure in all rounds."""
        spread = self.spread(name)
        return None if spread is None else spread.middle(self.system.draws)

    def time(self) -> float:
        """Return the median of :meth:`pace`, by which systems are ordered."""
        return median(self.pace(run) for run in self.runs)

    def pace(self, run: Run) -> float:
        """Return what is compared: the time of a sentence; of drawn output, which differs in
        length, that of a token."""
        found = run.milliseconds_per_token if self.system.draws else run.milliseconds_a_sentence
        assert found is not None
        return found

    def times_as_fast_as(self, other: SystemSummary) -> Spread | None:
        """Compared within a round, since the speed of a machine drifts; over rounds, the median."""
        theirs = {run.round: other.pace(run) for run in other.runs}
        pairs = ((theirs.get(run.round, 0), self.pace(run)) for run in self.runs)
        return Spread.of(their / own for their, own in pairs if their > 0 and own > 0)


@dataclass(frozen=True)
class Group:
    """All systems on a text, at one batch size on one device, in the order of the experiment."""

    systems: Sequence[SystemSummary]
    text: Sentences
    baseline: str
    """The name of the system that others are compared with."""

    @property
    def first(self) -> Run:
        """A run that tells what all share."""
        return self.systems[0].first

    @property
    def sampled(self) -> bool:
        """Whether tokens were drawn."""
        return self.systems[0].system.draws

    @property
    def label(self) -> str:
        """The part of file names that is the group's: ``cpu-batch1``,
        ``cuda-NVIDIA-H200-batch1-news``."""
        device = re.sub(r"[^A-Za-z0-9]+", "-", self.first.device).strip("-")
        text = f"-{self.first.text}" if self.first.text else ""
        return f"{device}-batch{self.first.batch}{text}"

    @property
    def conditions(self) -> str:
        """The conditions under which every number of the group was measured; what systems differ in
        is told with them."""
        run, every = self.first, [s.system for s in self.systems]
        engines = {s.first.engine for s in self.systems}, {s.first.precision for s in self.systems}
        parts = [run.device, *(one.pop() for one in engines if len(one) == 1)]
        threads = {system.threads for system in every}
        if run.device == "cpu" and len(threads) == 1:
            parts.append(counted(threads.pop(), "thread"))
        parts.append(f"batch {run.batch}")
        rules = {str(system.rule) for system in every if system.rule is not None}
        if len(rules) == 1:
            temperature = every[0].settings.limits.temperature
            scale = f" at temperature {temperature:g}" if self.sampled else ""
            parts.append(rules.pop() + scale)
        return f"{run.text}: {', '.join(parts)}" if run.text else ", ".join(parts)

    def of(self, *policies: str) -> list[SystemSummary]:
        """Return the systems of these policies."""
        return [one for one in self.systems if one.system.policy in policies]

    def beside(self, one: SystemSummary, **like: object) -> SystemSummary | None:
        """Return the system with as many threads that has these values."""
        for other in self.systems:
            wanted = {"threads": one.system.threads, **like}
            if all(getattr(other.system, name) == value for name, value in wanted.items()):
                return other
        return None

    def counterpart(self, one: SystemSummary, policy: str) -> SystemSummary | None:
        """Return the system of a policy that computes like another one."""
        like = {"engine": one.system.engine, "precision": one.system.precision}
        return self.beside(one, policy=policy, **like)

    def called(self, one: SystemSummary) -> str:
        """Its name, with the threads where systems differ in them."""
        several = len({other.system.threads for other in self.systems}) > 1
        return one.system.label if several else one.system.name

    def conditions_of(self, one: SystemSummary) -> JsonObject:
        """Return what belongs beside every number of a system."""
        system, run = one.system, one.first
        rule = system.rule
        return {
            "system": system.name,
            "text": run.text or None,
            "strategy": system.strategy,
            "controller": system.policy if system.options else None,
            "k": one.block_size,
            "threshold": system.threshold,
            "tree_nodes": system.tree_nodes,
            "beam": system.beam,
            "batch": run.batch,
            "rule": None if rule is None else str(rule),
            **({} if rule is None else rule.values),
            "temperature": system.settings.limits.temperature,
            "device": run.device,
            "engine": run.engine,
            "precision": run.precision,
            "threads": system.threads,
        }

    def over_baseline(self, one: SystemSummary) -> Spread | None:
        """Return how many times as fast as the baseline with as many threads; None without that."""
        baseline = self.beside(one, name=self.baseline)
        return None if baseline is None else one.times_as_fast_as(baseline)


def summarize(
    runs: Iterable[Run], systems: Sequence[System], texts: Sequence[Sentences], baseline: str
) -> list[Group]:
    """Return the groups, smaller batches first, texts and systems in their order; what has not run
    is left out.

    Args:
        baseline: the name of the system that others are compared with.
    """
    found: dict[tuple[str, int, str], dict[str, dict[int, Run]]] = {}
    for run in runs:
        by_label = found.setdefault((run.device, run.batch, run.text), {})
        by_label.setdefault(run.system, {})[run.round] = run
    groups = []
    for device, batch in sorted({key[:2] for key in found}):
        for text in texts:
            by_label = found.get((device, batch, text.name), {})
            here = [
                SystemSummary(one, [run for _, run in sorted(by_label[one.label].items())])
                for one in systems
                if one.label in by_label
            ]
            if here:
                groups.append(Group(here, text, baseline))
    return groups
