"""Compare controllers: alternating timed runs over a text, a table, and plots.

    scripts/evaluate.py DATA_DIR --path drafter.pt --AR-path verifier.pt \\
        --input-path FILE ... --output-path FOLDER

AR (the verifier alone, greedy), the drafter alone, and every controller asked for, with every k
and threshold, on every text, at every batch size, on every device. A round is one run of each, in
an order of its own; ratios are taken within a round, and of the rounds the median. On a machine
whose speed drifts, fewer lines and more rounds say more than many lines and few rounds. DATA_DIR
and the other flags are those of inference.py; of --controller, --confidence-threshold,
--stop-threshold, --tree-nodes, --block-size, --batch, --seed and --input-path several values may be
given.

With --sampling a round is drawn by each --seed, and of the rounds there is the mean. Then the
drafter alone is left out, which takes its best tokens, and the oracle, which cannot foresee what
will be drawn.

FOLDER gets runs.jsonl (a line a run, as soon as it is done), and from that sentences/*.jsonl (a
line a sentence, with SpecDec++'s names), summary.json, table.md, and for each device, batch size
and text pareto-*.{png,svg}, speed-*.{png,svg} and, where there is an oracle, oracle-*.{png,svg}. A
sweep that was stopped goes on by the same command, and one that is complete writes its outputs
anew; with other models, texts, settings, systems, processor or threads it is refused. More
--repeats, batch sizes and devices are added to what is there.

The oracle is not a real decoder: it is told what will be accepted, the bound of all that verify
chains. Times are those of decoding alone.
"""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from specdec_plugins.checkpoints.head_file import find_head
from specdec_plugins.decoding.controllers import POLICIES
from specdec_plugins.evaluation.folder import SweepFolder
from specdec_plugins.evaluation.outputs import own_files, write_outputs
from specdec_plugins.evaluation.plots import check_plotting
from specdec_plugins.evaluation.sweep import Sweep, run_sweep
from specdec_plugins.evaluation.systems import (
    CONTROLLERS,
    SWEPT,
    Choice,
    System,
    list_systems,
)
from specdec_plugins.evaluation.texts import open_texts
from specdec_plugins.files.streams import put
from specdec_plugins.files.terminal import command, program
from specdec_plugins.inference import Settings, load_translator
from specdec_plugins.inference.flags import TranslationParser, make_settings
from specdec_plugins.inference.run_files import check_run
from specdec_plugins.inference.settings import PLAIN

PROG = program("evaluate.py")
REPEATS, SEEDS = 5, (1, 2, 3, 4, 5)
logger = logging.getLogger(PROG)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = TranslationParser(PROG, __doc__, argv)
    # Some flags of a single run take several values here.
    parser.group.conflict_handler = "resolve"
    add = parser.group.add_argument
    about = "text, one sentence a line; several are compared in one table"
    add("--input-path", nargs="+", metavar="FILE", required=True, help=about)
    add("--text-name", nargs="+", metavar="NAME", help="of each text (its file's, if several)")
    add("--reference", nargs="+", metavar="FILE", help="translation of each text, to count BLEU")
    add("--output-path", metavar="FOLDER", type=Path, required=True, help="for runs and outputs")
    add("--lines", metavar="N", type=int, help="only the first N lines of each text")
    names = ", ".join(CONTROLLERS)
    add("--controller", nargs="+", choices=CONTROLLERS, metavar="NAME", help=f"of {names} (all)")
    add(
        "--constant-k",
        nargs="+",
        type=int,
        metavar="K",
        help="k of controller constant (1 2 3 4 6 8 10 12 … up to the k trained for)",
    )
    add("--block-size", nargs="+", type=int, metavar="K", help="k of the others (as trained)")
    for option in SWEPT.values():
        default = " ".join(map(str, option.sweep))
        several: dict[str, Any] = {"nargs": "+", "type": option.kind, "default": option.sweep}
        add(option.flag, **several, metavar="VALUE", help=f"{option.help} ({default})")
    add("--batch", nargs="+", type=int, default=[1], metavar="N", help="sentences at a time (1)")
    add("--device", nargs="+", choices=("cpu", "cuda"), help="(cuda if there is one, else cpu)")
    add("--threads", type=int, metavar="N", help="CPU threads (torch's own choice)")
    add("--repeats", type=int, metavar="N", help=f"rounds ({REPEATS}), without --sampling")
    seeds = "with --sampling a round is drawn by each (1; with --sampling 1 2 3 4 5)"
    add("--seed", nargs="+", type=int, metavar="N", help=seeds)
    add("--warmup", type=int, default=16, metavar="N", help="lines decoded before, untimed (16)")
    add("--trace", action="store_true", help="record steps of sentences, in one more pass of each")
    add("--no-plots", action="store_true", help="do without matplotlib")
    add("--no-progress-bar", action="store_true", help="no progress bar on a terminal")
    return parser.parse(argv)


def evaluate(args: argparse.Namespace, command: str) -> None:
    """Make the runs that are missing, then write and print what all of them come to.

    Args:
        command: what was typed.

    Raises:
        CheckpointError, InferenceError: what stopped it.
        ValueError: a setting that cannot be.
    """
    if args.threads is not None:
        if args.threads < 1:
            raise ValueError(f"--threads {args.threads}: must be at least 1")
        torch.set_num_threads(args.threads)
    if not args.no_plots:
        check_plotting()
    base, devices = make_base(args)
    outputs = [("--output-path", path) for path in own_files(args.output_path)]
    heads = [("the model's acceptance head", base.path and find_head(base.path, base.rule))]
    read = (("--input-path", args.input_path), ("--reference", args.reference or ()))
    inputs = [(flag, path) for flag, paths in read for path in paths]
    check_run(base, outputs, [*inputs, *heads])
    texts = open_texts(args.input_path, args.text_name, args.reference, args.lines)
    systems = choose_systems(args, base)
    batches, (repeats, seeds) = tuple(dict.fromkeys(args.batch)), choose_rounds(args)
    sweep = Sweep(systems, texts, devices, batches, repeats, args.warmup, seeds, args.trace)
    torch.manual_seed(seeds[0])
    with SweepFolder(args.output_path, sweep.describe()) as folder:
        missing = sum(len(one.systems) for one in sweep.pending(folder.runs))
        hidden = args.no_progress_bar or not sys.stderr.isatty()
        with tqdm(total=missing, unit="run", disable=hidden) as bar:
            for _ in run_sweep(sweep, folder, bar.set_description_str):
                bar.update()
        names = [system.name for system in systems]
        tables = write_outputs(folder, names, texts, command, not args.no_plots)
    if not args.quiet:
        put(tables)


def choose_rounds(args: argparse.Namespace) -> tuple[int, tuple[int, ...]]:
    """How often systems are run, and the seeds.

    Raises:
        ValueError: both, with sampling.
    """
    if not args.sampling:
        repeats = REPEATS if args.repeats is None else args.repeats
        return repeats, tuple(dict.fromkeys(args.seed or SEEDS[:1]))
    if args.repeats is not None:
        raise ValueError(
            f"--repeats {args.repeats}: with --sampling there is a round for each seed; give them "
            "with --seed"
        )
    return len(SEEDS), tuple(dict.fromkeys(args.seed or SEEDS))


def make_base(args: argparse.Namespace) -> tuple[Settings, tuple[str, ...]]:
    """What all systems share, and the devices.

    Raises:
        ValueError: a flag that cannot be.
    """
    if args.strategy != "specdec" or args.beam != 5:
        raise ValueError("--strategy, --beam: are not for a sweep; choose with --controller")
    if not args.path:
        raise ValueError("--path: give the drafter's checkpoint; a sweep needs it")
    # Whatever has several values is not for the settings of all; each value is checked here.
    for option in SWEPT.values():
        for value in getattr(args, option.name):
            option.check(value)
    own = {"batch": 1, "block_size": None, "controller": "heuristic"}
    swept = {name: max(getattr(args, name)) for name in SWEPT}
    base = make_settings(argparse.Namespace(**{**vars(args), **own, **swept}))
    devices = tuple(dict.fromkeys(args.device or [base.device]))
    if "cuda" in devices:
        if args.cpu:
            raise ValueError("--cpu and --device cuda: give one of them")
        if not torch.cuda.is_available():
            raise ValueError("--device cuda: there is none that torch can use; give --device cpu")
    return replace(base, device=devices[0]), devices


def choose_systems(args: argparse.Namespace, base: Settings) -> list[System]:
    """The systems, which need to know the drafter's k.

    ``acceptance-head`` is left out, with a warning, if no head is there and nobody asked for it.

    Raises:
        CheckpointError, InferenceError: models that cannot be used.
        ValueError: a k, bound or threshold that cannot be.
    """
    trained = load_translator(replace(base, **PLAIN)).block_size
    assert trained is not None
    real = tuple(name for name in CONTROLLERS if POLICIES[name].real)
    controllers = tuple(args.controller or (real if base.rule.draws else CONTROLLERS))
    assert base.path is not None
    found = base.controller["acceptance_head"] or find_head(base.path, base.rule)
    if not args.controller and not found:
        logger.warning("no acceptance head beside the drafter: controller acceptance-head left out")
        controllers = tuple(name for name in controllers if name != "acceptance-head")
    choice = Choice(
        controllers,
        tuple(args.constant_k) if args.constant_k else None,
        tuple(args.block_size) if args.block_size else None,
        {name: tuple(getattr(args, name)) for name in SWEPT},
    )
    return list_systems(base, choice, trained)


@command(PROG, "interrupted; finished runs are kept, the same command goes on")
def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, 1 for what the run met with, 2 for the command line."""
    argv = sys.argv[1:] if argv is None else argv
    args = parse(argv)
    evaluate(args, shlex.join([PROG, *argv]))
    return 0
