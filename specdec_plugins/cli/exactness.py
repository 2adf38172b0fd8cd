"""Count the outputs that should be the same and differ, and say how close the two words were.

    specdec-exactness MODEL_DIR --input-path FILE [--precision bfloat16] [--batch 1 32]
        [--engine openvino] [--drafter-precision int8] [--controller constant tree]
        [--against float32 stock] [--max-len-a 1.2] [--max-len-b 10] [--lenpen 0.6]
        [--repetition-penalty 1.2] [--target-prefix "__de__"] [--json FILE]

MODEL_DIR holds verifier.pt, drafter.pt, dictionaries and codes. FILE is ordinary text. In one
engine and precision strict speculation is compared with AR (our greedy loop without a drafter, at
batch 1), and AR with itself at the other batch sizes. Then, as --against says, AR is compared with
AR of the eager engine in float32 or float64, and AR and strict with stock beam 1, fairseq's own, in
the same precision (in float32, if that is int8). Stock beam 1 has no repetition penalty.

For every line that differs, the gap is the difference of the verifier's float64 log-probabilities,
in nats, of the two tokens at the first difference. In float64 rounding is too small to matter: exit
status 1 says that strict or AR differed there. In lower precision a difference is no error.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
from collections import ChainMap
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import product
from pathlib import Path

from specdec_plugins.decoding.controllers import POLICIES, ControllerOptions
from specdec_plugins.decoding.engine_choice import (
    ENGINE,
    OF_DRAFTER,
    PRECISION,
    choose_engines,
    engine_name,
)
from specdec_plugins.decoding.limits import REPETITION_PENALTY, GenerationLimits
from specdec_plugins.evaluation.differences import (
    Tokens,
    decode,
    gaps_between,
    head,
    lines_with_words,
    row,
)
from specdec_plugins.files.command import Parser, command, program, put
from specdec_plugins.files.errors import counted
from specdec_plugins.files.lines import Line
from specdec_plugins.files.lock import check_paths, reserved
from specdec_plugins.files.output import JsonObject, write_json
from specdec_plugins.inference import Settings, load_translator
from specdec_plugins.inference.report import where_and_when
from specdec_plugins.inference.run_files import describe_settings, model_files

PROG = program("exactness.py")

STOCK = "stock"
settings_of = partial(Settings.of_model, beam=1, keep_bpe=True)
LIMITS = {
    "max_len_a": "of a source's length, added to --max-len-b",
    "max_len_b": "most tokens of an output",
    "lenpen": "length penalty of scores",
}
"""fairseq's options that all systems are given, and what they are."""


@command(PROG, failed=2)
def main(argv: Sequence[str]) -> int:
    args = parse(argv)
    with reserved([("--json", args.json)]):
        return measure(args, shlex.join([PROG, *argv]))


def measure(args: argparse.Namespace, typed: str) -> int:
    """Compare, and tell. Returns the exit status."""
    engines = choose_engines(args.engine, args.precision, args.drafter_precision, "cpu")
    engine, precision = engines.name, engines.precision
    if args.json is not None:
        options = map(ControllerOptions, args.controller)
        settings = [settings_of(args.model, controller=option) for option in options]
        files = [pair for one in settings for pair in model_files(one).items()]
        check_paths([("--json", args.json)], [("--input-path", args.input_path), *files])
    lines = lines_with_words(args.input_path)
    names = (*LIMITS, REPETITION_PENALTY.name)
    limits = GenerationLimits(**{name: getattr(args, name) for name in names})
    plain = {"strategy": "AR", "engine": "eager", "precision": "float64", "limits": limits}
    reference = load_translator(settings_of(args.model, **plain))
    title = f"{counted(len(lines), 'line')}, {engine}, {precision}"
    put(f"{head(title)}\n")
    inexact, told = 0, []
    for title, found, expected, exact in comparisons(args, limits, lines):
        gaps = gaps_between(reference, lines, found, expected)
        put(f"{row(title, gaps, len(lines))}\n")
        told.append(figures(title, gaps, len(lines)))
        inexact += exact * len(gaps)
    if args.json is not None:
        about = {"machine": where_and_when(), "command": typed}
        digests = [describe_settings(one)["models"] for one in settings]
        about |= {"models": dict(ChainMap(*digests)), "engine": engine, "precision": precision}
        write_json(args.json, {**about, "comparisons": told}, "--json")
    return int(inexact > 0 and args.precision == "float64")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(PROG, __doc__)
    add = parser.add_argument
    add("model", metavar="MODEL_DIR", type=Path, help="the folder of a pair")
    add("--input-path", metavar="FILE", required=True, help="ordinary text")
    about = PRECISION.help
    add(PRECISION.flag, choices=PRECISION.choices, default="float64", help=about)
    add(OF_DRAFTER.flag, choices=OF_DRAFTER.choices, help=OF_DRAFTER.help)
    add(ENGINE.flag, choices=ENGINE.choices, default=ENGINE.default, help=ENGINE.help)
    add("--batch", metavar="N", type=int, nargs="+", default=[1, 32], help="sentences at a time")
    names = ", ".join(POLICIES)
    add(
        "--controller",
        metavar="NAME",
        choices=list(POLICIES),
        nargs="+",
        default=["constant"],
        help=f"of {names}",
    )
    add(
        "--against",
        choices=["float32", "float64", STOCK],
        nargs="+",
        help="default: float32; in float64, float32 and stock",
    )
    for name, help in LIMITS.items():
        default = getattr(GenerationLimits, name)
        flag = f"--{name.replace('_', '-')}"
        add(flag, metavar="N", type=type(default), default=default, help=f"{help} ({default:g})")
    add("--target-prefix", metavar="TEXT", help="what outputs begin with, in segmented text")
    penalty = REPETITION_PENALTY
    add("--json", metavar="FILE", type=Path, help="write the figures there, too")
    add(penalty.flag, type=penalty.kind, default=penalty.default, help=penalty.help)
    args = parser.parse_args(argv)
    plain = args.repetition_penalty == 1
    if args.against is None:
        args.against = ["float32", STOCK] if args.precision == "float64" and plain else ["float32"]
    if STOCK in args.against and not plain:
        parser.error(f"--against {STOCK}: fairseq's own search has no {penalty.flag}")
    return args


def comparisons(
    args: argparse.Namespace, limits: GenerationLimits, lines: list[Line]
) -> Iterator[tuple[str, list[Tokens], list[Tokens], bool]]:
    """What is compared: a title, both outputs, and whether only rounding within one precision may
    tell them apart."""

    @cache
    def decoded(
        strategy: str,
        engine: str = args.engine,
        precision: str = args.precision,
        batch: int = 1,
        controller: str = "constant",
    ) -> list[Tokens]:
        settings = settings_of(
            args.model,
            strategy=strategy,
            batch=batch,
            engine=engine,
            precision=precision,
            drafter_precision=args.drafter_precision if strategy == "specdec" else None,
            limits=limits,
            target_prefix=args.target_prefix,
            controller=ControllerOptions(controller),
        )
        return decode(load_translator(settings), lines)

    def stock() -> list[Tokens]:
        precision = args.precision if args.precision != "int8" else "float32"
        return decoded("fairseq", "eager", precision)

    ar, own = decoded("AR"), (args.engine, args.precision)
    compiled = engine_name(*own, "cpu") == "openvino"
    for controller, batch in product(args.controller, args.batch):
        found = decoded("specdec", *own, batch, controller)
        yield f"strict, {controller}, batch {batch}: AR", found, ar, True
        if STOCK in args.against:
            title = f"strict, {controller}, batch {batch}: stock beam 1"
            yield title, found, stock(), True
    for batch in args.batch:
        if batch != 1:
            yield f"AR, batch {batch}: AR, batch 1", decoded("AR", *own, batch), ar, True
    if STOCK in args.against:
        yield "AR: stock beam 1", ar, stock(), True
    for precision in args.against:
        if precision not in (STOCK, args.precision) or (precision != STOCK and compiled):
            yield f"AR: AR in eager {precision}", ar, decoded("AR", "eager", precision), False


def figures(title: str, gaps: list[float], lines: int) -> JsonObject:
    return {
        "compared": title,
        "lines": lines,
        "differ": len(gaps),
        "largest_gap": max(gaps) if gaps else None,
        "median_gap": statistics.median(gaps) if gaps else None,
    }
