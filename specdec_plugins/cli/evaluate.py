"""Compare controllers: alternating timed runs over a text, a table, and plots.

    specdec-evaluate PAIR --input-path FILE ... --output-path FOLDER

AR (the verifier alone, greedy), the drafter alone, and every controller asked for, with every k
and threshold, on every text, at every batch size. A round is one run of each, in an order of its
own; ratios are taken within a round, and of the rounds the median. On a machine whose speed drifts,
fewer lines and more rounds say more than many lines and few rounds. PAIR and the other flags are
those of inference.py; of --controller, --confidence-threshold, --stop-threshold, --tree-nodes,
--block-size, --batch, --seed and --input-path several values may be given.

With --sampling a round is drawn by each --seed, and of the rounds there is the mean. Then the
drafter alone is left out, which takes its best tokens, and the oracle, which cannot foresee what
will be drawn.

FOLDER gets runs.jsonl (a line a run, as soon as it is done), and from that sentences/*.jsonl (a
line a sentence, with SpecDec++'s names), summary.json, table.md, and for each batch size and text
pareto-*.{png,svg}, speed-*.{png,svg} and, where there is an oracle, oracle-*.{png,svg}. A sweep
that was stopped goes on by the same command, and one that is complete writes its outputs anew; with
other models, texts, settings, systems, processor or threads it is refused. More --repeats and batch
sizes are added to what is there.

The oracle is not a real decoder: it is told what will be accepted, the bound of all that verify
chains. Times are those of decoding alone.
"""

from __future__ import annotations

import argparse
import logging
import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from specdec_plugins.checkpoints.head_file import find_head
from specdec_plugins.cli.experiment import INTERRUPTED, REPEATS, add_flags, perform, read_texts
from specdec_plugins.decoding.controllers import POLICIES
from specdec_plugins.evaluation.controllers import (
    CONTROLLERS,
    SWEPT,
    Controllers,
    controlled_systems,
)
from specdec_plugins.evaluation.experiment import Experiment
from specdec_plugins.evaluation.outputs import Report
from specdec_plugins.evaluation.systems import choose_baseline
from specdec_plugins.evaluation.texts import Sentences
from specdec_plugins.files.command import command, program
from specdec_plugins.inference import Settings, load_translator
from specdec_plugins.inference.flag_checks import refuse_flags
from specdec_plugins.inference.flags import TranslationParser, make_settings
from specdec_plugins.inference.report import versions
from specdec_plugins.inference.settings import PLAIN

PROG = program("evaluate.py")
SEEDS = (1, 2, 3, 4, 5)
# Flags that are not for a sweep, with the value of each that asks for nothing.
OTHERS = "choose with --controller, or compare by specdec-benchmark"
REFUSED = (
    ("--strategy", "specdec", OTHERS),
    ("--beam", 5, OTHERS),
    ("--AR-backend", "auto", OTHERS),
    ("--trace", False, "was taken away; specdec-translate --trace records steps"),
    ("--device", None, "was taken away; a GPU is used if there is one, unless --cpu is given"),
)
logger = logging.getLogger(PROG)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = TranslationParser(PROG, __doc__, argv)
    add_flags(parser, batches=[1])
    add = parser.group.add_argument
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
        several = partial(add, option.flag, nargs="+", type=option.kind, default=option.sweep)
        several(metavar="VALUE", help=f"{option.help} ({default})")
    add("--threads", type=int, metavar="N", help="CPU threads (torch's own choice)")
    seeds = "with --sampling a round is drawn by each (1; with --sampling 1 2 3 4 5)"
    add("--seed", nargs="+", type=int, metavar="N", help=seeds)
    add("--trace", action="store_true", help=argparse.SUPPRESS)
    add("--device", nargs="+", help=argparse.SUPPRESS)
    return parser.parse(argv)


@command(PROG, INTERRUPTED)
def main(argv: Sequence[str]) -> None:
    """Compare the controllers that were asked for."""
    args = parse(argv)
    if args.threads is not None:
        if args.threads < 1:
            raise ValueError(f"--threads {args.threads}: must be at least 1")
        torch.set_num_threads(args.threads)
    base = make_base(args)
    head = base.path and find_head(base.path, base.rule)
    texts = read_texts(args, base, [("the model's acceptance head", head)])
    rounds = choose_rounds(args)
    translator = load_translator(replace(base, **PLAIN))
    assert translator.block_size is not None
    choice = choose_controllers(args, base)
    systems = controlled_systems(base, choice, translator.block_size, torch.get_num_threads())
    baseline = choose_baseline(systems, args.baseline)
    experiment = Experiment(
        systems=systems,
        texts=[Sentences.of(text, translator) for text in texts],
        base=base,
        versions=versions(),
        rounds=rounds,
        batches=tuple(dict.fromkeys(args.batch)),
        warmup=args.warmup,
    )
    del translator
    torch.manual_seed((args.seed or SEEDS)[0])
    typed = shlex.join([PROG, *argv])
    perform(args, experiment, Report(baseline, typed, {}, pictures=not args.no_plots))


def choose_rounds(args: argparse.Namespace) -> tuple[int, ...]:
    """Return the numbers of the rounds, which are the seeds where tokens are drawn.

    Raises:
        ValueError: both, or seeds that cannot be.
    """
    given = " ".join(map(str, args.seed or ()))
    if not args.sampling:
        if len(args.seed or ()) > 1:
            raise ValueError(f"--seed {given}: several are for --sampling")
        return tuple(range(1, (args.repeats or REPEATS) + 1))
    if args.repeats is not None:
        raise ValueError(
            f"--repeats {args.repeats}: with --sampling there is a round for each seed; give them "
            "with --seed"
        )
    if min(args.seed or SEEDS) < 0:
        raise ValueError(f"--seed {given}: must be 0 or more")
    return tuple(dict.fromkeys(args.seed or SEEDS))


def make_base(args: argparse.Namespace) -> Settings:
    """Return what all systems share.

    Raises:
        ValueError: a flag that cannot be.
    """
    refuse_flags(args, REFUSED)
    # Whatever has several values is not for the settings of all; each value is checked here.
    for option in SWEPT.values():
        for value in getattr(args, option.name):
            option.check(value)
    own = {"batch": 1, "block_size": None, "controller": "heuristic", "AR_backend": "ours"}
    swept = {name: max(getattr(args, name)) for name in SWEPT}
    return make_settings(argparse.Namespace(**{**vars(args), **own, **swept}))


def choose_controllers(args: argparse.Namespace, base: Settings) -> Controllers:
    """Return the controllers that were asked for.

    ``acceptance-head`` is left out, with a warning, if no head is there and nobody asked for it.
    """
    real = tuple(name for name in CONTROLLERS if POLICIES[name].real)
    names = tuple(args.controller or (real if base.rule.draws else CONTROLLERS))
    assert base.path is not None
    found = base.controller["acceptance_head"] or find_head(base.path, base.rule)
    if not args.controller and not found:
        logger.warning("no acceptance head beside the drafter: controller acceptance-head left out")
        names = tuple(name for name in names if name != "acceptance-head")
    return Controllers(
        names,
        tuple(args.constant_k) if args.constant_k else None,
        tuple(args.block_size) if args.block_size else None,
        {name: tuple(getattr(args, name)) for name in SWEPT},
    )
