"""Try a verifier: whether our greedy search gives the words of stock fairseq's, and how fast.

    specdec-check VERIFIER
    specdec-check VERIFIER --dictionaries DIR --input-path FILE --lines 50

VERIFIER is the checkpoint of a Transformer, or the folder of a pair. Without a text lines are made
of the words of the source dictionary. Lines of a text are segmented by what lies in the folder of
the dictionaries (codes, a SentencePiece model, segmentation.json), else taken as they are.

Printed are what the verifier is, the lines in which our AR differs from stock beam 1, in float64
and float32, and the milliseconds a line on the CPU, without loading. The comparison is that of
exactness.py, which says how to read gaps. The exit status is 0 if no line differed in float64, 1 if
one did, 2 for every error.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from random import Random

import torch

from specdec_plugins.checkpoints.architectures import AS_TRANSFORMER
from specdec_plugins.decoding.engine_choice import engine_name
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.evaluation import differences
from specdec_plugins.files.command import Parser, command, program, put
from specdec_plugins.files.errors import counted
from specdec_plugins.files.lines import Line
from specdec_plugins.inference import Settings, Translator, load_translator, pair_folder
from specdec_plugins.inference.verifier_facts import describe
from specdec_plugins.machine import processor_name

PROG = program("check.py")
LIMITS = GenerationLimits(max_len_a=1.2, max_len_b=10)
"""Random words may have outputs that end only here."""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(PROG, __doc__)
    add = parser.add_argument
    add("verifier", metavar="VERIFIER", type=Path, help="a checkpoint, or the folder of a pair")
    add("--dictionaries", metavar="DIR", type=Path, help="default: the folder of the checkpoint")
    add("-s", "--source-lang", metavar="LANG", help="default: the checkpoint's")
    add("-t", "--target-lang", metavar="LANG", help="default: the checkpoint's")
    add("--as-transformer", action="store_true", help=AS_TRANSFORMER)
    add("--input-path", metavar="FILE", help="a text (default: lines are made)")
    add("--lines", metavar="N", type=int, default=20, help="lines to decode")
    add("--seed", metavar="N", type=int, default=1, help="of the lines that are made")
    args = parser.parse_args(argv)
    if args.lines < 1:
        parser.error(f"--lines {args.lines}: must be at least 1")
    return args


def made_lines(words: Sequence[str], longest: int, args: argparse.Namespace) -> list[Line]:
    """Lines of 3 to 25 random words, as far as ``longest`` lets them."""
    random = Random(args.seed)
    sizes = [min(random.randint(3, 25), longest) for _ in range(args.lines)]
    return [Line(i, " ".join(random.choices(words, k=size))) for i, size in enumerate(sizes, 1)]


def decoded(settings: Settings, lines: list[Line]) -> tuple[list[differences.Tokens], str, float]:
    """Return the outputs, what computed them, and the milliseconds a line."""
    translator = load_translator(settings)
    translator.warm_up(lines[:1])
    outputs = differences.decode(translator, lines)
    how = f"{translator.engine}, {translator.arithmetic}"
    return outputs, how, 1000 * translator.statistics.total_seconds / len(lines)


def compare(settings: Settings, judge: Translator, lines: list[Line]) -> int:
    """Tell how AR differs from stock beam 1, and how fast both are. Returns the number of lines
    that differ in float64."""
    put(f"{differences.head(counted(len(lines), 'line'))}\n")
    inexact, times = 0, []
    for precision in ("float64", "float32"):
        plain = replace(settings, precision=precision, engine="eager")
        expected, how, milliseconds = decoded(replace(plain, strategy="fairseq"), lines)
        times.append(f"stock beam 1, {how}: {milliseconds:.1f}")
        compiles = engine_name("auto", precision, "cpu") != "eager"
        for engine in ("eager", "auto") if compiles else ("eager",):
            found, how, milliseconds = decoded(replace(plain, engine=engine), lines)
            gaps = differences.gaps_between(judge, lines, found, expected)
            put(f"{differences.row(f'AR, {how}: stock beam 1', gaps, len(lines))}\n")
            times.append(f"AR, {how}: {milliseconds:.1f}")
            inexact += len(gaps) * (precision == "float64")
    put(f"ms a line ({processor_name()}, {counted(torch.get_num_threads(), 'thread')}):\n")
    put("".join(f"  {time}\n" for time in times))
    return inexact


def next_steps(settings: Settings, args: argparse.Namespace) -> str:
    """Return what to type next for a verifier that translates as fairseq does."""
    data, path = Path(settings.data), Path(str(settings.ar_path))
    pair = path == data / pair_folder.VERIFIER and (data / pair_folder.DRAFTER).is_file()
    said = pair_folder.pair_settings(data)
    whole = pair and (settings.tokenizer, settings.bpe) == (said["tokenizer"], said["bpe"])
    options: dict[str, object] = {}
    if not whole:
        options = {"AR-path": path, "strategy": "AR", "tokenizer": settings.tokenizer}
        options |= {"bpe": settings.bpe, **settings.encoder_options}
    options |= {"source-lang": args.source_lang, "target-lang": args.target_lang}
    flags = [(f"--{name.replace('_', '-')}", str(one)) for name, one in options.items() if one]
    words = ["specdec-translate", settings.data, *chain.from_iterable(flags)]
    drafter = "" if pair else "  and a drafter for it, which makes it faster: docs/training.md\n"
    return f"  {shlex.join(words)} < FILE\n{drafter}"


@command(PROG, failed=2)
def main(argv: Sequence[str]) -> int:
    """Returns the exit status."""
    args = parse(argv)
    languages = {"source_lang": args.source_lang, "target_lang": args.target_lang}
    languages["as_transformer"] = args.as_transformer
    found = pair_folder.verifier_settings(args.verifier, args.dictionaries)
    settings = Settings(**found, **languages, limits=LIMITS, beam=1, keep_bpe=True)
    # Words of the dictionary are segmented already.
    used = settings if args.input_path else replace(settings, tokenizer=None, bpe=None)
    judge = load_translator(replace(used, precision="float64", engine="eager"))
    if args.input_path:
        lines = differences.lines_with_words(args.input_path, args.lines)
    else:
        words = judge.codec.source
        lines = made_lines(words.symbols[words.nspecial :], judge.codec.longest - 1, args)
    put("".join(f"{fact}\n" for fact in describe(judge)))
    encoders = ", ".join(filter(None, (settings.tokenizer, settings.bpe)))
    put(f"segmentation in {settings.data}: {encoders or 'none; text has to be segmented'}\n")
    inexact = compare(used, judge, lines)
    if inexact:
        put("In float64 lines differ: this verifier is not decoded as by fairseq; report it.\n")
        return 1
    put("In float64 all lines are stock fairseq's. Next:\n")
    put(next_steps(settings, args))
    return 0
