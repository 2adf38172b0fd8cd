"""What the folder of an experiment holds beside its runs: records, summary, tables, pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specdec_plugins.evaluation.discards import discards_against_constant
from specdec_plugins.evaluation.experiment import Experiment
from specdec_plugins.evaluation.folder import DESCRIPTION, RUNS, RunFolder
from specdec_plugins.evaluation.plots import FORMATS, PICTURES, draw_bars, save_figure
from specdec_plugins.evaluation.records import file_name, sentence_records
from specdec_plugins.evaluation.summary import RATES, Group, Spread, SystemSummary, summarize
from specdec_plugins.evaluation.systems import AR, CTRANSLATE2
from specdec_plugins.evaluation.table import summary_tables
from specdec_plugins.files.errors import counted
from specdec_plugins.files.lock import LOCK
from specdec_plugins.files.output import JsonObject, as_read, write_json, write_whole

SUMMARY, TABLE, SENTENCES, BARS = "summary.json", "table.md", "sentences", "speed"
TIMES = ("seconds", "milliseconds_a_sentence", "milliseconds_per_token", "tokens_per_second")


@dataclass(frozen=True)
class Report:
    """How an experiment is told."""

    baseline: str
    """The name of the system that others are compared with."""
    command: str
    """The command by which this was made."""
    left_out: Mapping[str, str]
    """Why a family of systems is not there."""
    pictures: bool = False
    """Whether every group is drawn."""
    bars: bool = False
    """Whether there is a picture of all groups."""


def own_files(folder: Path) -> Iterator[Path]:
    """The files of a folder that are an experiment's own, be they there or not."""
    yield from (folder / name for name in (LOCK, RUNS, DESCRIPTION, SUMMARY, TABLE))
    yield from (folder / f"{BARS}.{kind}" for kind in FORMATS)
    for pattern in (f"{SENTENCES}/*", *(f"{kind}-*" for kind in PICTURES)):
        yield from folder.glob(pattern)


def write_outputs(folder: RunFolder, experiment: Experiment, report: Report) -> str:
    """Write all that can be told from the runs; what is there of it is replaced file by file.

    Returns:
        the tables, in Markdown.

    Raises:
        InferenceError: a file cannot be written.
        ImportError: pictures without matplotlib.
    """
    groups = summarize(folder.runs, experiment.systems, experiment.texts, report.baseline)
    summary = _summary(folder, groups, report)
    text = summary_tables(summary)
    write_whole(folder.output / TABLE, [text.encode()])
    write_json(folder.output / SUMMARY, summary)
    for group in groups:
        for one in group.systems:
            records = (
                json.dumps(as_read(r), ensure_ascii=False) for r in sentence_records(one, group)
            )
            path = folder.output / SENTENCES / file_name(one, group)
            write_whole(path, (f"{record}\n".encode() for record in records))
        for name, draw in PICTURES.items() if report.pictures else ():
            if figure := draw(group):
                save_figure(figure, folder.output / f"{name}-{group.label}")
    if report.bars:
        about = folder.description
        machine = f"{about['processor']}, {counted(about['cores'], 'core')}"
        save_figure(draw_bars(groups, machine), folder.output / BARS)
    return text


def _summary(folder: RunFolder, groups: Sequence[Group], report: Report) -> JsonObject:
    """``summary.json``: where, when, with what and of what, and what it comes to."""
    about = folder.description
    dates = sorted(run.began for run in folder.runs)
    machine = ("processor", "cores", "versions", "waiting")
    references = next((group.text.references for group in groups if group.text.references), None)
    found = {
        "machine": {
            **{name: about[name] for name in machine if name in about},
            "first_run": dates[0],
            "last_run": dates[-1],
        },
        "command": report.command,
        "models": about["models"],
        "texts": about["texts"],
        "baseline": report.baseline,
        "bleu_signature": references.signature() if references else None,
        "left_out": dict(report.left_out),
        "groups": [group_figures(group) for group in groups],
    }
    read: JsonObject = as_read(found)
    return read


def group_figures(group: Group) -> JsonObject:
    """A group's part of ``summary.json``."""
    return {
        "conditions": group.conditions,
        "systems": [system_figures(one, group) for one in group.systems],
        "acceptance_head_against_constant": discards_against_constant(group),
    }


def system_figures(one: SystemSummary, group: Group) -> JsonObject:
    """A system's part, with what each number was measured under."""
    system = one.system
    return {
        **group.conditions_of(one),
        "asks_head": bool(system.options and system.options.needs_head),
        "options": system.describe()["options"],
        "sentences": one.first.sentences,
        "seeds": [run.round for run in one.runs] if group.sampled else None,
        **{name: one.middle(name) for name in RATES},
        "over_rounds": {name: one.spread(name) for name in RATES},
        **{name: one.spread(name) for name in TIMES},
        "control_share": one.middle("control_share"),
        "speed_over_baseline": group.over_baseline(one),
        "lines_unlike_AR": _unlike(one, group.counterpart(one, AR)),
        "lines_unlike_CTranslate2_float32": _unlike(
            one, group.beside(one, strategy=CTRANSLATE2, precision="float32")
        ),
        **_bleu(one, group),
        "memory_mib": None if one.memory is None else one.memory / 2**20,
        "real_decoder": system.real,
    }


def _unlike(one: SystemSummary, other: SystemSummary | None) -> int | None:
    """How many lines differ in round 1; None where either is not there, and of what is drawn."""
    if other is None or not one.output or not other.output or one.system.draws:
        return None
    return sum(a != b for a, b in zip(one.output, other.output, strict=True))


def _bleu(one: SystemSummary, group: Group) -> JsonObject:
    """The BLEU figures of round 1, or of each seed; None without references."""
    references = group.text.references
    outputs = [run.by_sentence.output for run in one.runs if run.by_sentence.output]
    scores = [references.scores(output) for output in outputs] if references else []
    return {
        "bleu": Spread.of(score.sacrebleu for score in scores),
        "tokenised_bleu": Spread.of(score.tokenised for score in scores),
    }
