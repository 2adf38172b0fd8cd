"""Compare a pair with what a user would pick otherwise: fairseq itself, and CTranslate2.

    specdec-benchmark PAIR --source FILE --reference FILE --output-path FOLDER

The same verifier decodes the same subwords by stock fairseq (beam 5 and 1), by CTranslate2's greedy
search in every precision that this processor has, by our AR, and by speculation, strict and
relaxed, at every batch size and number of threads. Each system has a process of its own, which
waits while another is timed. A round is one run of each; ratios are taken within a round, and of
the rounds the median. PAIR and the other flags are those of inference.py. All on the CPU.

FOLDER gets runs.jsonl (a line a run, as soon as it is done), and from that summary.json, table.md
and speed.{png,svg}. A benchmark that was stopped goes on by the same command, and one that is
complete writes its outputs anew; with other models, text, settings, systems, versions or machine it
is refused. More --repeats and batch sizes are added to what is there. Times are those of decoding
alone.
"""

from __future__ import annotations

import argparse
import logging
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

from specdec_plugins.cli.experiment import INTERRUPTED, REPEATS, add_flags, perform, read_texts
from specdec_plugins.decoding.acceptance import RelaxedRule
from specdec_plugins.decoding.acceptance.rules import RELAXED, rule_named
from specdec_plugins.decoding.controllers import ControllerOptions
from specdec_plugins.decoding.engine_choice import COMPILED, PRECISIONS, engines_for_cpus
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.evaluation.ctranslate2_system import (
    check_installed,
    check_precisions,
    supported_precisions,
)
from specdec_plugins.evaluation.experiment import Experiment
from specdec_plugins.evaluation.outputs import Report
from specdec_plugins.evaluation.peers import (
    CONTROLLERS,
    EAGER,
    FLOAT32,
    OPENVINO,
    Peers,
    peer_systems,
)
from specdec_plugins.evaluation.systems import AR, CTRANSLATE2, choose_baseline
from specdec_plugins.evaluation.texts import Sentences
from specdec_plugins.files.command import command, program
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.inference import Settings, Translator, load_translator
from specdec_plugins.inference.ctranslate2_model import convert_verifier, refuse_languages
from specdec_plugins.inference.flag_checks import refuse_flags
from specdec_plugins.inference.flags import TranslationParser, make_settings
from specdec_plugins.inference.report import versions
from specdec_plugins.machine import cores

PROG = program("benchmark.py")
logger = logging.getLogger(PROG)

CPU_PRECISIONS = [name for name in PRECISIONS if name != "float16"]
ENGINES = (EAGER, OPENVINO)
# Flags that systems do not have in common, with the value of each that asks for nothing.
REFUSED = (
    ("--strategy", "specdec", "all strategies are compared"),
    ("--AR-backend", "auto", "CTranslate2 is a system of its own"),
    ("--sampling", False, "systems are compared by what they say"),
    ("--seed", 1, "nothing is drawn"),
    ("--fp16", False, "choose with --precision"),
    ("--bf16", False, "choose with --precision"),
    ("--fp64", False, "choose with --precision"),
    ("--target-prefix", None, "CTranslate2 is given none"),
    ("--unkpen", 0, "CTranslate2 has no such option"),
    ("--temperature", 1.0, "CTranslate2's greedy search has no such option"),
    ("--repetition-penalty", 1.0, "fairseq's own search has no such option"),
)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = TranslationParser(PROG, __doc__, argv)
    add_flags(parser, batches=[1, 8, 32])
    add = parser.group.add_argument
    number = partial(add, type=int, metavar="N")
    number(
        "--threads", nargs="+", help="CPU threads of each system (1 2, as far as there are cores)"
    )
    number("--beam", nargs="*", default=[5, 1], help="of stock fairseq (5 1)")
    add(
        "--ctranslate2",
        nargs="*",
        metavar="TYPE",
        help="precisions of CTranslate2, each perhaps with kernels that it does not choose itself "
        "(int8:avx512, int8:mkl, int8:unpacked); default: all that this processor has, by its own "
        "choice and by others that may be better here; without a value: do without",
    )
    add(
        "--precision",
        nargs="+",
        choices=CPU_PRECISIONS,
        default=[FLOAT32, "bfloat16"],
        help="precisions of AR and speculation, with each engine that has them (float32 bfloat16)",
    )
    add(
        "--drafter-precision",
        nargs="+",
        choices=COMPILED,
        default=(),
        help="precisions of drafts, where OpenVINO runs the verifier in the same or a wider one "
        "(the verifier's)",
    )
    add(
        "--engine", nargs="+", choices=ENGINES, help="engines of AR and speculation (all installed)"
    )
    add("--controller", nargs="+", choices=CONTROLLERS, metavar="NAME", default=["tree"],
        help=f"of {', '.join(CONTROLLERS)} (tree)")  # fmt: skip
    add(
        "--rule",
        nargs="+",
        metavar="NAME",
        default=["strict", "relaxed"],
        help="acceptance: strict, relaxed (--beta 3 --tau 1.0 if not given), or relaxed:BETA:TAU "
        "for more than one of this kind (strict relaxed)",
    )
    parser.set_defaults(beta=RELAXED.beta, tau=RELAXED.tau)
    return parser.parse(argv)


@command(PROG, INTERRUPTED)
def main(argv: Sequence[str]) -> None:
    """Compare the systems that were asked for."""
    args = parse(argv)
    base, choice = make_base(args), choose(args)
    texts = read_texts(args, base)
    verifier = load_translator(replace(base, strategy=AR, block_size=None))
    systems, left_out = peer_systems(base, choice), {}
    with tempfile.TemporaryDirectory(prefix="specdec-") as folder:
        model: Path | None = None
        if choice.ctranslate2:
            try:
                model = convert(verifier, Path(folder) / "model")
            except InferenceError as error:
                logger.warning("%s; goes on without it", error)
                systems = [system for system in systems if system.strategy != CTRANSLATE2]
                left_out = {CTRANSLATE2: str(error)}
        baseline = choose_baseline(systems, args.baseline)
        experiment = Experiment(
            systems=systems,
            texts=[Sentences.of(text, verifier) for text in texts],
            base=base,
            versions={**versions(), **({"ctranslate2": version("ctranslate2")} if model else {})},
            rounds=range(1, (args.repeats or REPEATS) + 1),
            batches=tuple(dict.fromkeys(args.batch)),
            warmup=args.warmup,
            apart=True,
            model=model,
        )
        del verifier
        typed = shlex.join([PROG, *argv])
        perform(args, experiment, Report(baseline, typed, left_out, bars=not args.no_plots))


def convert(verifier: Translator, folder: Path) -> Path:
    """The folder of the verifier as CTranslate2 has it.

    Raises:
        InferenceError: it has no such model.
    """
    generator, codec = verifier.generator, verifier.codec
    assert isinstance(generator, SpeculativeGenerator)
    assert generator.model is not None
    refuse_languages(codec.tokens)
    convert_verifier(generator.model, codec.source, codec.target, folder)
    return folder


def make_base(args: argparse.Namespace) -> Settings:
    """What all of our systems share.

    Raises:
        ValueError: a flag that cannot be.
    """
    refuse_flags(args, [(flag, off, f"{why}; leave it out") for flag, off, why in REFUSED])
    own = {"batch": 1, "beam": 1, "controller": "constant", "cpu": True}
    own |= {"AR_backend": "ours", "engine": EAGER, "precision": FLOAT32, "drafter_precision": None}
    return make_settings(argparse.Namespace(**{**vars(args), **own}))


def choose(args: argparse.Namespace) -> Peers:
    """The systems that were asked for.

    Raises:
        ValueError: a value that cannot be, naming its flag.
    """
    for value in args.beam:
        if value < 1:
            raise ValueError(f"--beam {value}: must be at least 1")
    if args.beta < 2:
        raise ValueError(f"--beta {args.beta}: relaxed acceptance takes 2 or more; leave it out")
    relaxed = RelaxedRule(args.beta, args.tau)
    precisions = args.ctranslate2
    if precisions != []:
        check_installed()
        check_precisions(precisions or ())
    options = ControllerOptions.from_config(
        argparse.Namespace(**{**vars(args), "controller": "constant"})
    )
    return Peers(
        threads=_threads(args.threads),
        beams=args.beam,
        ctranslate2=supported_precisions() if precisions is None else precisions,
        precisions=args.precision,
        drafter_precisions=args.drafter_precision,
        engines=args.engine or engines_for_cpus(),
        controllers=[options.having(name) for name in args.controller],
        rules=list(dict.fromkeys(rule_named(name, relaxed) for name in args.rule)),
    )


def _threads(asked: Sequence[int] | None) -> Sequence[int]:
    """
    Raises:
        ValueError: numbers of threads that cannot be.
    """
    most = cores()
    if asked is None:
        return [n for n in (1, 2) if n <= most]
    for value in asked:
        if not 1 <= value <= most:
            raise ValueError(f"--threads {value}: must be from 1 to {most}, the cores there are")
    return asked
