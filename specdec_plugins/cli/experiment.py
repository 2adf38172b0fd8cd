"""What the commands that compare systems share: the flags, and the way from them to the outputs."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from specdec_plugins.evaluation.experiment import Experiment, run_experiment
from specdec_plugins.evaluation.folder import RunFolder
from specdec_plugins.evaluation.outputs import Report, own_files, write_outputs
from specdec_plugins.evaluation.plots import check_plotting
from specdec_plugins.evaluation.texts import NamedText, open_texts
from specdec_plugins.files.command import put, tell
from specdec_plugins.files.lock import NamedPaths
from specdec_plugins.inference.flags import TranslationParser
from specdec_plugins.inference.run_files import check_run
from specdec_plugins.inference.settings import Settings

REPEATS = 5
PAUSE = 10.0
"""Seconds from one line of progress to the next where there is no terminal."""
INTERRUPTED = "interrupted; finished runs are kept, the same command goes on"


def add_flags(parser: TranslationParser, batches: Sequence[int]) -> None:
    """Add the flags of every comparison; those of a single run take several values then.

    Args:
        batches: batch sizes by default.
    """
    parser.group.conflict_handler = "resolve"
    add = parser.group.add_argument
    about = "text, one sentence a line; several are compared in one table"
    add("--input-path", "--source", nargs="+", metavar="FILE", required=True, help=about)
    add("--text-name", nargs="+", metavar="NAME", help="of each text (its file's, if several)")
    add("--reference", nargs="+", metavar="FILE", help="translation of each text, to count BLEU")
    add("--output-path", metavar="FOLDER", type=Path, required=True, help="for runs and outputs")
    add("--lines", metavar="N", type=int, help="only the first N lines of each text")
    usual = " ".join(map(str, batches))
    about = f"sentences at a time ({usual})"
    add("--batch", nargs="+", type=int, metavar="N", default=batches, help=about)
    add("--repeats", type=int, metavar="N", help=f"rounds ({REPEATS})")
    add("--warmup", type=int, default=16, metavar="N", help="lines decoded before, untimed (16)")
    about = "system to compare with (CTranslate2 float32, else the first)"
    add("--baseline", metavar="NAME", help=about)
    add("--no-plots", action="store_true", help="do without matplotlib")
    add("--no-progress-bar", action="store_true", help="say nothing of what is being done")


def read_texts(args: argparse.Namespace, base: Settings, heads: NamedPaths = ()) -> list[NamedText]:
    """Return the texts, once it is sure that no output is an input.

    Args:
        heads: more inputs.

    Raises:
        InferenceError: two files are the same, or one cannot be read.
        ValueError: a flag that cannot be.
    """
    if not args.no_plots:
        check_plotting()
    repeats = REPEATS if args.repeats is None else args.repeats
    for flag, value in (("--repeats", repeats), *(("--batch", n) for n in args.batch)):
        if value < 1:
            raise ValueError(f"{flag} {value}: must be at least 1")
    if args.warmup < 0:
        raise ValueError(f"--warmup {args.warmup}: must be 0 or more")
    outputs = [("--output-path", path) for path in own_files(args.output_path)]
    read = (("--input-path", args.input_path), ("--reference", args.reference or ()))
    inputs = [(flag, path) for flag, paths in read for path in paths]
    check_run(base, outputs, [*inputs, *heads])
    return open_texts(args.input_path, args.text_name, args.reference, args.lines)


def perform(args: argparse.Namespace, experiment: Experiment, report: Report) -> None:
    """Make the runs that are missing, then write and print what all of them come to.

    Raises:
        CheckpointError, InferenceError: what stopped it.
        ValueError: settings that do not fit the models.
    """
    silent, told = args.no_progress_bar, time.monotonic()
    with RunFolder(args.output_path, experiment.describe()) as folder:
        before = len(folder.runs)
        missing = sum(len(one.systems) for one in experiment.pending(folder.runs))
        # None hides it where there is no terminal; there is a line now and then, so that a log
        # shows that it goes on.
        with tqdm(total=missing, unit="run", disable=silent or None) as bar:

            def note(what: str) -> None:
                nonlocal told
                bar.set_description_str(what)
                if bar.disable and not silent and time.monotonic() - told >= PAUSE:
                    told = time.monotonic()
                    tell(f"{len(folder.runs) - before} of {missing} runs; {what}")

            for _ in run_experiment(experiment, folder, note):
                bar.update()
        tables = write_outputs(folder, experiment, report)
    if not args.quiet:
        put(tables)
