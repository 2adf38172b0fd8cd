"""What a sweep's folder holds beside its runs: records, summary, table and pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from specdec_plugins.evaluation.comparisons import compare
from specdec_plugins.evaluation.folder import DESCRIPTION, RUNS, SweepFolder, provenance
from specdec_plugins.evaluation.plots import draw_oracle, draw_pareto, draw_speed
from specdec_plugins.evaluation.records import file_name, sentence_records
from specdec_plugins.evaluation.summary import Group, summarize, system_figures
from specdec_plugins.evaluation.table import format_group, format_texts
from specdec_plugins.evaluation.texts import Text
from specdec_plugins.files.output import write_whole
from specdec_plugins.files.paths import files_below
from specdec_plugins.files.work_folder import LOCK
from specdec_plugins.inference.report import plain

SUMMARY, TABLE, SENTENCES = "summary.json", "table.md", "sentences"
PICTURES = {"pareto": draw_pareto, "speed": draw_speed, "oracle": draw_oracle}


def own_files(folder: Path) -> Iterator[Path]:
    """The files of a folder that are a sweep's own, be they there or not."""
    yield from (folder / name for name in (LOCK, RUNS, DESCRIPTION, SUMMARY, TABLE))
    yield from files_below(folder, f"{SENTENCES}/*", *(f"{kind}-*" for kind in PICTURES))


def write_outputs(
    folder: SweepFolder,
    order: Sequence[str],
    texts: Sequence[Text],
    command: str,
    plots: bool = True,
) -> str:
    """Write all that can be told from the runs; what is there of it is replaced file by file.

    Args:
        order: names of systems.
        command: by which the runs were made.

    Returns:
        the tables, in Markdown.

    Raises:
        InferenceError: a file cannot be written.
        ImportError: ``plots`` without matplotlib.
    """
    about, groups = folder.description, summarize(folder.runs, order, texts)
    tables, figures = list(_tables_across_texts(groups)), []
    for group in groups:
        comparisons = compare(group)
        tables.append(format_group(group, comparisons))
        figures.append(
            {
                "conditions": group.conditions,
                "systems": [system_figures(system, group.ar) for system in group.systems],
                "comparisons": comparisons,
            }
        )
        _write_sentences(folder.output / SENTENCES, group)
        if plots:
            _draw(folder.output, group)
    text = "\n".join(tables)
    write_whole(folder.output / TABLE, [text.encode()])
    summary = {
        "machine": provenance(about, folder.runs),
        "command": command,
        "models": about["models"],
        "groups": figures,
    }
    write_whole(folder.output / SUMMARY, [json.dumps(plain(summary), indent=1).encode(), b"\n"])
    return text


def _tables_across_texts(groups: Sequence[Group]) -> Iterator[str]:
    """Of groups that differ in nothing but the text."""
    for _, alike in groupby(groups, key=lambda group: group.first.group[:-1]):
        across = list(alike)
        if len(across) > 1:
            yield format_texts(across)


def _write_sentences(folder: Path, group: Group) -> None:
    """What each system made of each sentence."""
    for system in group.systems:
        records = (
            json.dumps(plain(r), ensure_ascii=False) for r in sentence_records(system, group)
        )
        path = folder / file_name(system, group)
        write_whole(path, (f"{record}\n".encode() for record in records))


def _draw(folder: Path, group: Group) -> None:
    """All pictures of a group."""
    for kind, draw in PICTURES.items():
        for ending, picture in draw(group).items():
            write_whole(folder / f"{kind}-{group.label}.{ending}", [picture])
