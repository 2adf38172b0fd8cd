"""What a benchmark's folder holds beside its runs: summary, table and picture."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specdec_plugins.evaluation.benchmark.measurements import (
    DESCRIPTION,
    BenchmarkFolder,
)
from specdec_plugins.evaluation.benchmark.plots import draw_speed
from specdec_plugins.evaluation.benchmark.results import BatchResult, collect
from specdec_plugins.evaluation.benchmark.rounds import Benchmark
from specdec_plugins.evaluation.benchmark.table import format_results
from specdec_plugins.evaluation.bleu import References
from specdec_plugins.evaluation.folder import RUNS, provenance
from specdec_plugins.evaluation.outputs import SUMMARY, TABLE
from specdec_plugins.evaluation.plots import FORMATS
from specdec_plugins.files.json_object import JsonObject
from specdec_plugins.files.output import write_whole
from specdec_plugins.files.work_folder import LOCK
from specdec_plugins.inference.report import plain

PICTURE = "speed"


@dataclass(frozen=True)
class Report:
    """How results are told."""

    baseline: str
    """The name of the system that others are compared with."""
    left_out: Mapping[str, str]
    """Why a family of systems is not there."""
    command: str
    """By which this was made."""
    plots: bool = True


def own_files(folder: Path) -> Iterator[Path]:
    """The files of a folder that are a benchmark's own, be they there or not."""
    yield from (folder / name for name in (LOCK, RUNS, DESCRIPTION, SUMMARY, TABLE))
    yield from (folder / f"{PICTURE}.{kind}" for kind in FORMATS)


def write_outputs(folder: BenchmarkFolder, benchmark: Benchmark, report: Report) -> str:
    """Write all that can be told from the runs; what is there of it is replaced file by file.

    Returns:
        the tables, in Markdown.

    Raises:
        InferenceError: a file cannot be written.
        ImportError: plots without matplotlib.
    """
    references = benchmark.sentences.references
    results = collect(folder.runs, benchmark.systems, report.baseline, references)
    summary = _summary(folder, results, report, references)
    processor = f"{folder.description['processor']}, {folder.description['cores']} cores"
    tables = [format_results(results, processor, report.baseline, summary["bleu_signature"])]
    tables += [f"{family} is left out: {why}.\n" for family, why in report.left_out.items()]
    text = "\n".join(tables)
    write_whole(folder.output / TABLE, [text.encode()])
    write_whole(folder.output / SUMMARY, [json.dumps(plain(summary), indent=1).encode(), b"\n"])
    if report.plots:
        rounds, count = max(run.round for run in folder.runs), len(benchmark.sentences.lines)
        title = f"{processor}; {count} sentences, medians of {rounds} rounds"
        for kind, picture in draw_speed(results, title).items():
            write_whole(folder.output / f"{PICTURE}.{kind}", [picture])
    return text


def _summary(
    folder: BenchmarkFolder,
    results: Sequence[BatchResult],
    report: Report,
    references: References | None,
) -> JsonObject:
    about = folder.description
    return {
        "machine": {**provenance(about, folder.runs), "waiting": about["waiting"]},
        "command": report.command,
        "models": about["models"],
        "baseline": report.baseline,
        "bleu_signature": references.signature() if references else None,
        "left_out": dict(report.left_out),
        "text": about["text"],
        "batches": [
            {
                "batch": one.batch,
                "systems": [system.figures() for system in one.systems],
                "fastest": [leader.figures() for leader in one.leaders()],
            }
            for one in results
        ],
    }
