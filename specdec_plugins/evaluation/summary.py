"""What the runs of a sweep come to: over rounds medians, over seeds means; ratios within rounds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median

from specdec_plugins.decoding.controllers import POLICIES
from specdec_plugins.evaluation.runs import Run
from specdec_plugins.evaluation.systems import AR, DRAFTER
from specdec_plugins.evaluation.texts import Text
from specdec_plugins.inference.report import counted


@dataclass(frozen=True)
class Spread:
    """Of one number per round: median, mean, the least and the greatest."""

    median: float
    mean: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """None of nothing."""
        values = list(values)
        if not values:
            return None
        return cls(median(values), fmean(values), min(values), max(values), len(values))

    def middle(self, sampled: bool) -> float:
        """What stands for all: the mean where rounds are seeds, whose differences are no faults;
        else the median, since a machine may have been busy in some."""
        return self.mean if sampled else self.median


@dataclass(frozen=True)
class SystemSummary:
    """A system on a text, at one batch size on one device; rates are medians over its rounds, of
    sampled output means over its seeds."""

    runs: Sequence[Run]
    """By round."""
    tokens_per_second: Spread
    milliseconds_per_token: Spread
    seconds: Spread
    control_share: float
    """How much of the seconds the controller's answers took, 0 to 1."""
    acceptance_length: float
    acceptance_rate: float
    verification_rate: float
    discard_rate: float
    verified_discard_rate: float
    same_as_ar: int | None
    """Sentences with the same output as AR, in round 1; None where that is not known, and where
    tokens are drawn."""
    bleu: Spread | None
    """Of round 1, or of each seed, by sacreBLEU; None without references."""

    @property
    def memory(self) -> int | None:
        """Bytes, at most: see :class:`Run`."""
        known = [run.memory for run in self.runs if run.memory is not None]
        return max(known, default=None)

    @property
    def first(self) -> Run:
        """One that tells the settings, which all share."""
        return self.runs[0]

    @property
    def name(self) -> str:
        """The system's."""
        return self.first.system

    @property
    def policy(self) -> str:
        """The system's."""
        return self.first.policy

    def spread(self, name: str) -> Spread:
        """Of a figure of its runs, by its name."""
        found = Spread.of(getattr(run, name) for run in self.runs)
        assert found is not None
        return found


@dataclass(frozen=True)
class Group:
    """All systems on a text, at one batch size on one device, in the order of the sweep."""

    systems: Sequence[SystemSummary]

    @property
    def first(self) -> Run:
        """One that tells what all share: device, engine, precision, threads, batch, rule."""
        return self.systems[0].first

    @property
    def label(self) -> str:
        """As a part of file names: ``cpu-batch1``, ``cuda-NVIDIA-H200-batch1-news``."""
        device = re.sub(r"[^A-Za-z0-9]+", "-", self.first.device).strip("-")
        text = f"-{self.first.text}" if self.first.text else ""
        return f"{device}-batch{self.first.batch}{text}"

    @property
    def conditions(self) -> str:
        """Under which every number of the group was measured."""
        return f"{self.first.text}: {self.machine}" if self.first.text else self.machine

    @property
    def machine(self) -> str:
        """Of these, those that all texts share."""
        run = self.first
        threads = f", {counted(run.threads, 'thread')}" if run.device == "cpu" else ""
        scale = f" at temperature {run.temperature:g}" if run.sampled else ""
        return (
            f"{run.device}, {run.engine}, {run.precision}{threads}, batch {run.batch}, "
            f"{run.rule}{scale}"
        )

    @property
    def sampled(self) -> bool:
        """Whether tokens were drawn."""
        return self.first.sampled

    def of(self, *policies: str) -> list[SystemSummary]:
        """The systems of these policies."""
        return [system for system in self.systems if system.policy in policies]

    def decoders(self) -> list[SystemSummary]:
        """All whose output is the verifier's: without the drafter alone."""
        return [system for system in self.systems if system.policy != DRAFTER]

    @property
    def ar(self) -> SystemSummary | None:
        """The baseline; None before its first run."""
        return next(iter(self.of(AR)), None)


def is_real(policy: str) -> bool:
    """False of what knows more than a decoder can."""
    return policy not in POLICIES or POLICIES[policy].real


def speed_ratio(system: SystemSummary, baseline: SystemSummary) -> Spread | None:
    """How many times as many tokens a second ``system`` puts out as ``baseline``.

    Compared within a round, since the speed of a machine drifts; of the rounds, the median.
    """
    theirs = {run.round: run.tokens_per_second for run in baseline.runs}
    return Spread.of(
        run.tokens_per_second / theirs[run.round]
        for run in system.runs
        if theirs.get(run.round, 0) > 0
    )


def summarize(runs: Iterable[Run], order: Sequence[str], texts: Sequence[Text] = ()) -> list[Group]:
    """The groups, smaller batches first, texts in their order.

    Args:
        order: names of systems.
    """
    place = {name: index for index, name in enumerate(order)}
    known = {text.name: text for text in texts}
    turn = {name: index for index, name in enumerate(known)}
    groups: dict[tuple[str, str, str, int, int, str], dict[str, dict[int, Run]]] = {}
    for run in runs:
        groups.setdefault(run.group, {}).setdefault(run.system, {})[run.round] = run
    found = []
    for key in sorted(groups, key=lambda key: (*key[:-1], turn.get(key[-1], len(turn)), key)):
        systems, text = groups[key], known.get(key[-1])
        names = sorted(systems, key=lambda name: place.get(name, len(place)))
        rounds = {name: [run for _, run in sorted(systems[name].items())] for name in names}
        baseline = rounds.get(AR, [])
        found.append(Group([_system(rounds[name], baseline, text) for name in names]))
    return found


RATES = (
    *("acceptance_length", "acceptance_rate", "verification_rate"),
    *("discard_rate", "verified_discard_rate"),
)


def _system(runs: list[Run], baseline: list[Run], text: Text | None) -> SystemSummary:
    speed = Spread.of(run.tokens_per_second for run in runs)
    pace = Spread.of(1000 * run.seconds / max(run.committed_tokens, 1) for run in runs)
    seconds = Spread.of(run.seconds for run in runs)
    assert speed is not None
    assert pace is not None
    assert seconds is not None
    sampled = runs[0].sampled
    middle = fmean if sampled else median
    outputs = [
        next((r.by_sentence.output for r in rs if r.round == 1), []) for rs in (runs, baseline)
    ]
    spoken = [(run.by_sentence.line, run.by_sentence.output) for run in runs]
    scores = [text.bleu(*said) for said in spoken] if text is not None else []
    known = outputs[0] and len(outputs[0]) == len(outputs[1]) and not sampled
    return SystemSummary(
        runs=runs,
        tokens_per_second=speed,
        milliseconds_per_token=pace,
        seconds=seconds,
        control_share=middle(r.control_seconds / r.seconds if r.seconds else 0.0 for r in runs),
        **{name: middle(getattr(run, name) for run in runs) for name in RATES},
        bleu=Spread.of(score for score in scores if score is not None),
        same_as_ar=sum(a == b for a, b in zip(*outputs)) if known else None,
    )


def system_figures(system: SystemSummary, ar: SystemSummary | None) -> dict[str, object]:
    """A system's part of ``summary.json``, with what each number was measured under."""
    run = system.first
    over_ar = speed_ratio(system, ar) if ar is not None else None
    return {
        **run.conditions,
        "asks_head": run.asks_head,
        "options": run.options,
        "sentences": run.sentences,
        "seeds": [run.round for run in system.runs] if run.sampled else None,
        **{name: getattr(system, name) for name in RATES},
        "over_rounds": {name: asdict(system.spread(name)) for name in RATES},
        "seconds": asdict(system.seconds),
        "control_share": system.control_share,
        "tokens_per_second": asdict(system.tokens_per_second),
        "milliseconds_per_token": asdict(system.milliseconds_per_token),
        "speed_over_AR": asdict(over_ar) if over_ar else None,
        "same_as_AR": system.same_as_ar,
        "bleu": asdict(system.bleu) if system.bleu else None,
        "memory_mib": None if system.memory is None else system.memory / 2**20,
        "real_decoder": is_real(run.policy),
    }
