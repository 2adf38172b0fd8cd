"""The table of an experiment, with BLEU and acceptance."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median

from specdec_plugins import __version__
from specdec_plugins.decoding.controllers.base import CONTROLLERS
from specdec_plugins.evaluation.bleu import References
from specdec_plugins.evaluation.experiment import Conditions, Experiment, Run, machine_name
from specdec_plugins.files.errors import counted
from specdec_plugins.inference.settings import Settings
from specdec_plugins.inference.systems import AR, BEAM
from specdec_plugins.machine import cores

MEANINGS = """\
ms: milliseconds a sentence, of decoding alone; median over rounds, range in brackets. times {}:
how many times as fast, within a round (of drawn output by the token). Acceptance length: tokens
committed a step, bonus token included. Acceptance rate: accepted tokens per verified one.
Verification rate: verifier calls per committed token. Discard rate: drafted tokens that were not
accepted, per committed token; of verified: only those that were verified. Memory: the peak of the
system's process, on a GPU of its tensors. Unlike AR: lines that differ from AR's (greedy, no
drafts) of the same engine and precision.
"""
BLEU = "BLEU: sacreBLEU `{}`; tokenised BLEU: of Moses tokens, compounds split, as in SpecDec.\n"
#: Columns, besides the ratio, of a table for the terminal, which has at most five.
BRIEF = ("system", "ms", "BLEU", "acceptance length", "unlike AR")
#: The system that all ratios are taken against, where it is measured.
STOCK = "fairseq@beam=1"
#: Systems in words.
NAMES = {STOCK: "fairseq's greedy search", AR: "greedy, no drafts", BEAM: "fairseq's search, ours"}
UNREAL = {name for name, kind in CONTROLLERS.items() if not kind.real}


@dataclass(frozen=True)
class Result:
    """Runs of a system under the same conditions, by round."""

    system: str
    settings: Settings
    where: Conditions
    runs: Sequence[Run]

    @property
    def outputs(self) -> list[list[str]]:
        """The translations: of the first round, or of each seed."""
        runs = self.runs if self.settings.rule.draws else self.runs[:1]
        return [run.outputs for run in runs]

    def values(self, name: str) -> list[float]:
        """Return a figure of all rounds in which it is known."""
        figures = (run.figures().get(name) for run in self.runs)
        return [value for value in figures if value is not None]

    def middle(self, name: str) -> float:
        """Return the median of a figure; NaN where it is not known."""
        values = self.values(name)
        return median(values) if values else math.nan

    def speed_over(self, other: Result) -> list[float]:
        """Return how many times as fast this is in each round; drawn output by the token."""
        by_round = {run.round: run.figures() for run in other.runs}
        name = "tokens_per_second" if self.settings.rule.draws else "milliseconds"
        pairs = [(run.figures(), by_round.get(run.round, {})) for run in self.runs]
        known = [(a[name], b[name]) for a, b in pairs if name in a and name in b]
        return [b / a if name == "milliseconds" else a / b for a, b in known if a and b]


def results(experiment: Experiment, runs: Sequence[Run]) -> list[list[Result]]:
    """Return the results of all systems, a list for each text, batch size and number of threads."""
    made = defaultdict[object, list[Run]](list)
    for run in runs:
        made[run.text, run.batch, run.threads, run.system].append(run)
    groups = []
    for text, batch, threads in product(experiment.texts, experiment.batches, experiment.threads):
        where = Conditions(text, batch, threads)
        group = [
            Result(system, settings, where, made[text.name, batch, threads, system])
            for system, settings in experiment.systems.items()
        ]
        groups.append([result for result in group if result.runs])
    return [group for group in groups if group]


def titled(system: str) -> str:
    """Return a system with its name in words: ``AR@int8 (greedy, no drafts)``."""
    name = NAMES.get(system) or NAMES.get(system.partition("@")[0])
    return f"{system} ({name})" if name else system


def table(
    experiment: Experiment, runs: Sequence[Run], baseline: str, command: str, brief: bool = False
) -> str:
    """Return all results in Markdown, with the command and the processor; ``brief``: five columns
    of them."""
    dates = sorted(run.began[:10] for run in runs)
    machine = f"{machine_name()}, {counted(cores(), 'core')}"
    parts = [
        f"    {command}",
        "",
        f"{machine}; {dates[0]} to {dates[-1]}; specdec {__version__}.",
        "",
    ]
    for group in results(experiment, runs):
        where = group[0].where
        sentences = counted(len(where.text.sentences), "sentence")
        rounds = counted(max(len(result.runs) for result in group), "round")
        threads = counted(where.threads, "thread")
        title = f"{where.text.name}, {sentences}, batch {where.batch}, {threads}, {rounds}"
        parts += [f"### {title}", "", *_rows(group, baseline, brief), ""]
    if brief:
        return "\n".join(parts)
    parts.append(MEANINGS.format(NAMES.get(baseline, baseline)))
    references = [text.references for text in experiment.texts if text.references]
    if references:
        parts.append(BLEU.format(references[0].signature()))
    return "\n".join(parts)


def _rows(group: Sequence[Result], baseline: str, brief: bool) -> Iterator[str]:
    """Yield a table of the columns that are not empty."""
    ratio = f"times {NAMES.get(baseline, baseline)}"
    rows = [_row(result, group, baseline, ratio) for result in group]
    heads = [head for head in rows[0] if any(row[head] for row in rows)]
    if brief:
        heads = [head for head in heads if head in (*BRIEF, ratio)][:5]
    yield from markdown(heads, ([row[head] for head in heads] for row in rows))


def _row(result: Result, group: Sequence[Result], baseline: str, ratio: str) -> dict[str, str]:
    """Return a row's cells by column; the ratio is empty where the baseline is not measured."""
    run = result.runs[0]
    name = titled(result.system)
    if result.settings.policy in UNREAL:
        name += " (not real)"
    row = {
        "system": name,
        "engine": f"{run.engine} {run.precision}",
        "ms": spread(result.values("milliseconds")),
        ratio: "",
        "BLEU": _bleu(result, References.bleu),
        "tokenised BLEU": _bleu(result, References.tokenised_bleu),
        "acceptance length": number(result.middle("acceptance_length"), 2),
        "acceptance rate": number(result.middle("acceptance_rate"), 3),
        "verification rate": number(result.middle("verification_rate"), 3),
        "discard rate": number(result.middle("discard_rate"), 2),
        "of verified": number(result.middle("verified_discard_rate"), 2),
        "memory, MiB": number(result.middle("memory"), 0, 2**-20),
        "unlike AR": number(unlike(result, group), 0),
    }
    for other in group:
        if other.system == baseline:
            row[ratio] = spread(result.speed_over(other), 2)
    return row


def markdown(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yield the lines of a table."""
    heads = list(heads)
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def number(value: float, digits: int, scale: float = 1.0) -> str:
    """Return a figure, or nothing for NaN."""
    return "" if math.isnan(value) else f"{scale * value:.{digits}f}"


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Return the median, with the range if there are several values."""
    if not values:
        return ""
    middle = f"{median(values):.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def counterpart(result: Result, group: Sequence[Result], policy: str) -> Result | None:
    """Return the first system of a policy that would write the same without drafts, if there is
    such a system."""
    wanted = _without_drafts(result)
    for other in group:
        drawn = other.settings.rule.draws
        if other.settings.policy == policy and not drawn and _without_drafts(other) == wanted:
            return other
    return None


def _without_drafts(result: Result) -> tuple[object, ...]:
    """Return what a verifier's output depends on: "float32, int8 drafts" is float32."""
    run = result.runs[0]
    engine, _, _ = run.engine.partition(",")
    precision, _, _ = run.precision.partition(",")
    return engine, precision, result.settings.limits, result.settings.target_prefix


def unlike(result: Result, group: Sequence[Result]) -> float:
    """Return the number of lines that differ from AR's; NaN where there is nothing to compare."""
    other = counterpart(result, group, AR)
    if other is None or other is result or result.settings.rule.draws:
        return math.nan
    return sum(a != b for a, b in zip(result.outputs[0], other.outputs[0], strict=True))


def _bleu(result: Result, figure: Callable[[References, Sequence[str]], float]) -> str:
    """Return a figure of the outputs, if the text has references."""
    references = result.where.text.references
    if references is None:
        return ""
    return spread([figure(references, output) for output in result.outputs])
