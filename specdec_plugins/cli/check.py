"""Check that a verifier's or pair's output is stock fairseq's, and time it on this machine.

    specdec-check VERIFIER
    specdec-check PAIR --input-path FILE --batch 1 32 --systems constant@float64 tree@int8

VERIFIER is the checkpoint of a Transformer, or a folder of transformers, which is compared with
transformers itself, too, where that is installed. PAIR is the folder of a pair. Without a text,
lines are made of the source dictionary's words. Each system, named as in specdec-evaluate, is
compared with stock search of its beam in its precision (for int8, in float32). The gap of a line
that differs tells by how many nats the verifier, in float64, prefers one of the two tokens. The
exit status is 0 if no line differed in float64, 1 if one did, 2 for every error.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from random import Random

import torch

from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.evaluation.table import markdown, titled
from specdec_plugins.evaluation.texts import decode, gap, read_text
from specdec_plugins.files.command import Parser, command, positive, put
from specdec_plugins.files.errors import InferenceError, counted
from specdec_plugins.files.lines import Line
from specdec_plugins.inference import Settings, Translator
from specdec_plugins.inference.flags import add_verifier_flags, settings_of_verifier
from specdec_plugins.inference.pair_folder import pair_settings
from specdec_plugins.inference.report import describe_verifier
from specdec_plugins.inference.systems import DRAFTER as UNVERIFIED
from specdec_plugins.inference.systems import parse_system
from specdec_plugins.jobs.loading import load
from specdec_plugins.machine import processor_name
from specdec_plugins.verifiers.families import family_of, limits_of
from specdec_plugins.verifiers.folder import is_folder
from specdec_plugins.verifiers.reference import greedy_output

#: Random words may have outputs that end only here.
LIMITS = GenerationLimits(max_len_a=1.2, max_len_b=10)
#: Lines that are made where there is no text.
MADE = 20


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add_verifier_flags(parser, "a checkpoint, or the folder of a pair or of transformers")
    add("--input-path", metavar="FILE", help="a text (default: made-up lines)")
    add("--lines", metavar="N", type=positive, help=f"lines to decode (all; made: {MADE})")
    add(
        "--batch",
        metavar="N",
        type=positive,
        nargs="+",
        default=[1],
        help="sentences at a time (1)",
    )
    add("--systems", metavar="SYSTEM", nargs="+", help="(AR; for a pair also constant, tree)")
    return parser.parse_args(argv)


@command(failed=2)
def main(argv: Sequence[str]) -> int:
    """Return the exit status."""
    args = parse(argv)
    drafter = pair_settings(args.verifier).get("path")
    base = settings_of_verifier(args, limits=LIMITS, beam=1, keep_bpe=True, path=drafter)
    lines: list[Line] = []
    if args.input_path:
        lines = read_text(args.input_path, args.lines)
    else:  # words of the dictionary are segmented already
        base = replace(base, tokenizer=None, bpe=None)
    # Stock fairseq has no penalty; transformers has the folder's.
    penalty = limits_of(args.verifier).get("repetition_penalty", 1.0)
    limits = replace(LIMITS, repetition_penalty=penalty)
    judge = load(replace(base, precision="float64", engine="eager", limits=limits))
    lines = lines or made_lines(judge, args)
    put("\n".join(describe_verifier(judge)) + "\n")
    lines = [line for line in lines if judge.codec.encode(line) is not None]
    if not lines:
        raise InferenceError(f"--input-path {args.input_path}: holds no sentence; name a text")
    counts = compare(base, judge, lines, args)
    differ = sum(counts)
    if is_folder(args.verifier) and find_spec("transformers") is not None:
        unlike, milliseconds = unlike_transformers(args.verifier, judge, lines)
        put(f"unlike transformers' greedy search, in float64: {unlike} of {len(lines)} lines; ")
        put(f"in float32 it takes {milliseconds:.1f} ms a line\n")
        family = family_of(args.verifier)
        # A pad before an output is banned anyway.
        if penalty != 1 and family.start != family.config.pad_token_id:
            put("transformers' repetition penalty counts the </s> before an output, too\n")
        else:
            differ += unlike
    if differ:
        put("In float64 lines differ: we decode this verifier unlike fairseq; please report it.\n")
        return 1
    if counts:
        put("In float64 all lines are stock fairseq's. ")
    flags = {
        "--dictionaries": args.dictionaries,
        "--source-lang": args.source_lang,
        "--target-lang": args.target_lang,
    }
    words = [str(args.verifier)]
    for flag, value in flags.items():
        if value:
            words += [flag, str(value)]
    if args.as_transformer:
        words.append("--as-transformer")
    model = shlex.join(words)
    put(f"Next:\n  specdec-translate {model}\n")
    if base.path:
        put(f"  specdec-tune {model}\n")
    else:  # the text that was checked is not to be learnt
        put(f"  specdec-make-pair {model} SOURCES OUT --dry-run\n")
    return 0


def made_lines(judge: Translator, args: argparse.Namespace) -> list[Line]:
    """Return lines of 3 to 25 random words, but none longer than the verifier takes."""
    random = Random(1)
    source = judge.codec.source
    words = source.symbols[source.nspecial :]
    sizes = [min(random.randint(3, 25), judge.codec.longest - 1) for _ in range(args.lines or MADE)]
    return [Line(i, " ".join(random.choices(words, k=size))) for i, size in enumerate(sizes, 1)]


def compare(
    base: Settings, judge: Translator, lines: list[Line], args: argparse.Namespace
) -> list[int]:
    """Print how each system differs from stock search, and how fast both are; return the number of
    lines that differ for each system that is to be exact, in float64."""
    names = ["AR@float64,engine=eager", "AR"]
    if base.path is not None:
        names += ["constant@float64,engine=eager", "tree@float64,engine=eager"]
    rows = []
    references = {}
    counts = []
    for name, batch in product(args.systems or names, args.batch):
        settings = parse_system(name, base)
        outputs, *figures = decoded(replace(settings, batch=batch), lines)
        precision = "float32" if settings.precision == "int8" else settings.precision
        name_of_stock = f"fairseq@beam={settings.beams}"
        stock = parse_system(
            f"{name_of_stock},precision={precision}",
            replace(base, target_prefix=settings.target_prefix, limits=settings.limits),
        )
        key = name_of_stock, repr(stock)
        if key not in references:
            references[key] = decoded(stock, lines)
        gaps = [
            gap(judge, line, a, b)
            for line, a, b in zip(lines, outputs, references[key][0], strict=True)
            if a != b
        ]
        # Neither drawn nor unverified output is meant to be the same.
        rule = settings.rule
        exact = rule.lossless and not rule.draws and settings.strategy != UNVERIFIED
        if settings.precision == "float64" and exact:
            counts.append(len(gaps))
        differ = f"{len(gaps)} ({100 * len(gaps) / len(lines):.1f} %)"
        largest = f"{max(gaps):.2g}" if gaps else ""
        rows.append([f"{titled(name)}, batch {batch}", figures[0], differ, largest, figures[1]])
    for (name, _), (_, *figures) in references.items():
        rows.append([titled(name), figures[0], "", "", figures[1]])
    put(f"{counted(len(lines), 'line')}; {processor_name()}, ")
    put(f"{counted(torch.get_num_threads(), 'thread')}\n")
    heads = ("system", "by", "lines unlike fairseq's", "largest gap, nats", "ms a line")
    put("\n".join(markdown(heads, rows)) + "\n")
    return counts


def unlike_transformers(folder: Path, judge: Translator, lines: list[Line]) -> tuple[int, float]:
    """Return the number of lines that transformers, in float64, translates otherwise, and the
    milliseconds that a line takes it in float32."""
    codec = judge.codec
    tokens = codec.tokens
    limits = judge.settings.limits
    sources = [ids for line in lines if (ids := codec.encode(line)) is not None]
    lengths = [
        limits.max_length(len(ids), judge.generator.positions) - len(tokens.forced)
        for ids in sources
    ]
    expected, _ = greedy_output(folder, sources, lengths, tokens, limits.min_len)
    _, seconds = greedy_output(folder, sources, lengths, tokens, limits.min_len, torch.float32)
    unlike = 0
    for ours, theirs, length in zip(decode(judge, lines), expected, lengths, strict=True):
        output = [codec.target.index(token) for token in ours[:length]]
        unlike += output != theirs
    return unlike, 1000 * seconds / len(lines)


def decoded(settings: Settings, lines: list[Line]) -> tuple[list[list[str]], str, str]:
    """Return the outputs, the engine and precision, and the milliseconds a line."""
    translator = load(settings)
    decode(translator, lines[:1])
    before = translator.statistics.total_seconds
    outputs = decode(translator, lines)
    milliseconds = 1000 * (translator.statistics.total_seconds - before) / len(lines)
    return outputs, f"{translator.engine}, {translator.precision}", f"{milliseconds:.1f}"
