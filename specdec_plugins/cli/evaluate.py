r"""Compare systems on texts: alternating timed runs, a table, and plots.

    specdec-evaluate PAIR --input-path FILE --output-path FOLDER --batch 1 32 --systems \
        fairseq@beam=5 ctranslate2@int8 AR tree tree@tree_nodes={4,16} constant@beta=3,tau=1

A system is NAME or NAME@KEY=VALUE,... where NAME is fairseq (stock beam search), ctranslate2
(greedy, or with beam=5), AR (greedy, no drafts), beam (fairseq's beam search on our engine),
drafter (alone, unverified) or a controller. Keys are options of controllers, acceptance, limits and
engines; a value without a key is the precision.
Each runs in its own process, which waits while another is timed; ratios are taken within a round.
FOLDER gets table.md, which is also printed, plots and all runs. Repeat the command to continue a
stopped experiment, or to add rounds, batch sizes and threads.
"""

from __future__ import annotations

import argparse
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from specdec_plugins.evaluation.experiment import Experiment, measure
from specdec_plugins.evaluation.plots import check_installed, draw, save_figure
from specdec_plugins.evaluation.records import write_records
from specdec_plugins.evaluation.table import STOCK, results, table
from specdec_plugins.evaluation.texts import Sentences
from specdec_plugins.evaluation.tuning import bases
from specdec_plugins.files.command import command, positive, program, put
from specdec_plugins.files.output import write_whole
from specdec_plugins.inference import Settings
from specdec_plugins.inference.backends import convert_checked, obstacle
from specdec_plugins.inference.flags import TranslationParser, make_settings
from specdec_plugins.inference.settings import PLAIN
from specdec_plugins.inference.systems import AR, parse_system
from specdec_plugins.jobs import progress
from specdec_plugins.jobs.loading import load


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = TranslationParser(__doc__, argv)
    add = parser.group.add_argument
    add(
        "--systems",
        nargs="+",
        metavar="SYSTEM",
        help=f"to compare ({STOCK} {AR} tree; without a drafter constant in place of tree)",
    )
    add("--input-path", nargs="+", metavar="FILE", required=True, help="texts")
    add("--reference", nargs="+", metavar="FILE", help="translation of each text, for BLEU")
    add("--output-path", metavar="FOLDER", type=Path, required=True, help="for the results")
    add("--lines", metavar="N", type=positive, help="only the first N lines of each text")
    add("--batch", nargs="+", type=positive, metavar="N", default=[1], help="batch sizes (1)")
    add("--threads", nargs="+", type=positive, metavar="N", default=[1], help="CPU threads (1)")
    add("--rounds", type=positive, metavar="N", default=5, help="timed runs (5)")
    add("--warmup", type=int, metavar="N", default=16, help="untimed lines before them (16)")
    add(
        "--baseline", metavar="SYSTEM", help=f"compare with this system ({STOCK}, AR, or the first)"
    )
    add("--no-plots", action="store_true", help="do without matplotlib")
    args = parser.parse(argv)
    args.reference = args.reference or [None] * len(args.input_path)
    if len(args.reference) != len(args.input_path):
        parser.error("--reference: give one for each text")
    for path in args.input_path:
        if args.input_path.count(path) > 1:
            parser.error(f"--input-path {path}: is named twice")
    if (args.strategy, args.controller) != ("specdec", "auto"):
        parser.error("--strategy, --controller: are said by --systems, such as AR or tree")
    if args.warmup < 0:
        parser.error(f"--warmup {args.warmup}: must be at least 0")
    return args


@command("interrupted; finished rounds are kept, the same command goes on")
def main(argv: Sequence[str]) -> None:
    """Compare the systems."""
    args = parse(argv)
    if not args.no_plots:
        check_installed("give --no-plots")
    base = make_settings(argparse.Namespace(**{**vars(args), "batch": 1}))
    names = args.systems or [*bases(base), "tree" if base.path else "constant"]
    systems = {name: parse_system(name, base, vars(args)) for name in names}
    baseline = args.baseline or next(n for n in (STOCK, AR, *systems) if n in systems)
    if baseline not in systems:
        raise ValueError(f"--baseline {baseline}: must be one of {', '.join(systems)}")
    for path in filter(None, [*args.input_path, *args.reference]):
        open(path, "rb").close()  # before anything is loaded
    with tempfile.TemporaryDirectory(prefix="specdec-") as folder:
        experiment = prepare(args, base, systems, Path(folder) / "model")
        with progress(args.no_progress_bar, unit="run") as bar:
            bar.total = sum(len(turns) for _, turns in experiment.pending([]))
            bar.iterable = measure(experiment, args.output_path, bar.set_description_str)
            runs = list(bar)
    command_line = shlex.join([program(), *argv])
    path = args.output_path / "table.md"
    write_whole(path, [table(experiment, runs, baseline, command_line).encode()])
    groups = results(experiment, runs)
    write_records(groups, args.output_path)
    if not args.no_plots:
        for name, figure in draw(groups, baseline):
            save_figure(figure, args.output_path / name)
    if not args.quiet:
        brief = table(experiment, runs, baseline, command_line, brief=True)
        put(f"{brief}\n{path} has all columns, and says what they mean.\n")


def prepare(
    args: argparse.Namespace, base: Settings, systems: dict[str, Settings], folder: Path
) -> Experiment:
    """Return the experiment, with the verifier converted to ``folder`` if CTranslate2 is a system;
    refuse models that cannot be used before anything is written."""
    if not any(settings.has_drafter for settings in systems.values()):
        base = parse_system(AR, base)
    converted = [name for name, settings in systems.items() if settings.by_ctranslate2]
    for name in converted:
        if reason := obstacle(systems[name]):
            raise ValueError(f"--systems {name}: {reason}")
    if converted:
        if base.split_sentences:
            raise ValueError(f"--split-sentences: does not work with --systems {converted[0]}")
        base = replace(base, beam=1, nbest=1, search_options={})
    translator = load(replace(base, **PLAIN), args.no_progress_bar)
    model = None
    if converted:
        model = folder
        convert_checked(translator.verifier, translator.codec, model)
    return Experiment(
        systems=systems,
        texts=[
            Sentences.read(path, reference, args.lines, translator)
            for path, reference in zip(args.input_path, args.reference)
        ],
        rounds=args.rounds,
        batches=tuple(dict.fromkeys(args.batch)),
        threads=tuple(dict.fromkeys(args.threads)),
        warmup=args.warmup,
        model=model,
    )
