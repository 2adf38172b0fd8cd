"""A trace as one page to look at: HTML that is complete in itself and fetches nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.decoding.step_result import StepTrace
from specdec_plugins.files.errors import counted
from specdec_plugins.inference.trace_file import SentenceTrace

TEMPLATE = "trace_report.html"
PAD = "<pad>"
"""fairseq's symbol, in every dictionary."""
Bar = tuple[int, int, int]
"""A length or slot, how many steps it stands for, and of how many."""


@dataclass
class TraceTotals:
    """Counts over all sentences of a trace."""

    statistics: DecodingStatistics = field(default_factory=DecodingStatistics)
    """As the run itself counts, but for the drafter's passes: a step that verified what was left
    of a draft counts as one, too. Times and the histogram are left out."""
    blank_lines: int = 0
    """Lines without words, which no step was taken for."""
    lengths: Counter[int] = field(default_factory=Counter)
    """Steps by acceptance length: committed tokens, bonus token included."""
    reached: Counter[int] = field(default_factory=Counter)
    """Steps by slot (0 is the first) that reached it: see :func:`reached_slots`."""
    accepted: Counter[int] = field(default_factory=Counter)
    """Steps by slot that accepted its token."""
    ratios: list[float] = field(default_factory=list)
    """min(1, p / q) of every token of a chain whose slot was reached."""

    def add(self, sentence: SentenceTrace) -> None:
        """Count one more line of a trace."""
        self.blank_lines += not sentence.steps
        self.statistics.sentences += bool(sentence.steps)
        self.statistics.forced_tokens += len(sentence.forced)
        self.statistics.verifier_calls += bool(sentence.forced)
        for step in sentence.steps:
            self._count(step)
            self.lengths[step.committed] += 1
            self.reached.update(range(reached_slots(step)))
            self.accepted.update(range(step.accepted))
            if step.parents is None:
                judged = (step.p_acc or [])[: reached_slots(step)]
                self.ratios += [ratio for ratio in judged if ratio is not None]

    def _count(self, step: StepTrace) -> None:
        counts = self.statistics
        counts.steps += 1
        counts.verifier_calls += 1
        counts.drafter_calls += bool(step.drafted)
        counts.drafted_tokens += len(step.drafted)
        counts.verified_tokens += step.verify_length
        counts.accepted_tokens += step.accepted
        counts.committed_tokens += step.committed

    @property
    def mean_ratio(self) -> float | None:
        """The mean of min(1, p / q); None where that is not known."""
        return sum(self.ratios) / len(self.ratios) if self.ratios else None

    def length_bars(self) -> list[Bar]:
        """Steps by acceptance length, from 1 to the longest."""
        steps, longest = self.statistics.steps, max(self.lengths, default=0)
        return [(length, self.lengths[length], steps) for length in range(1, longest + 1)]

    def slot_bars(self) -> list[Bar]:
        """Steps that accepted a slot's token, among those that reached it."""
        return [(slot, self.accepted[slot], steps) for slot, steps in sorted(self.reached.items())]


def token_figures(step: StepTrace, place: int) -> list[str]:
    """What is written under a drafted token: what the trace has of p, q, min(1, p / q) and the
    head."""
    rows = (("p", step.p), ("q", step.q), ("p/q", step.p_acc), ("head", step.head))
    known = [(name, values[place]) for name, values in rows if values is not None]
    return [f"{name} {value:.2f}" for name, value in known if value is not None]


def reached_slots(step: StepTrace) -> int:
    """How many slots of a step were judged by themselves.

    Those are the verified slots all before which were accepted, without EOS: the accepted ones,
    and the one that was rejected first. A tree's slots are how deep it is: where the accepted way
    could have gone on, that slot was rejected.
    """
    if step.bonus is None:
        return step.accepted
    if step.parents is None:
        return step.accepted + (step.accepted < step.verify_length)
    rejected = range(step.accepted, step.verify_length)
    # What fills a tree up is no candidate for anything.
    after = {step.parents[place] for place in rejected if step.drafted[place] != PAD}
    return step.accepted + (step.accepted - 1 in after)


def template(name: str) -> Template:
    """A file beside this one, into which all text is put escaped."""
    environment = Environment(
        loader=PackageLoader("specdec_plugins.inference", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["counted"] = counted
    return environment.get_template(name)


def build_report(sentences: Iterable[SentenceTrace], limit: int, name: str) -> str:
    """The page. All text is escaped, and the page itself forbids scripts and whatever is not in it.

    Args:
        sentences: read once.
        limit: sentences to show; the counts are of all.
        name: what the page calls the trace.
    """
    totals = TraceTotals()
    shown: list[SentenceTrace] = []
    lines = 0
    for lines, sentence in enumerate(sentences, start=1):
        totals.add(sentence)
        if lines <= limit:
            shown.append(sentence)
    return template(TEMPLATE).render(
        name=name,
        totals=totals,
        shown=shown,
        left_out=lines - len(shown),
        figures=token_figures,
    )
