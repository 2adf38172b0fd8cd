"""Train a drafter for your verifier, from text in its source language, and make a pair.

    specdec-make-pair VERIFIER SOURCES OUT --hours 4

VERIFIER is the checkpoint of a fairseq Transformer or a folder of transformers, SOURCES raw text,
one sentence a line; no references are needed. At the end, every command takes the folder OUT/pair;
OUT/README.md is its card. Repeat the command to continue after a stop; give more --updates or
--hours to train further. Ctrl-C during the training exports the best drafter so far.
"""

from __future__ import annotations

import argparse
import io
import math
import re
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from specdec_plugins.files.command import Parser, command, positive, put
from specdec_plugins.files.errors import ConfigError, InferenceError
from specdec_plugins.files.output import JsonObject
from specdec_plugins.inference.flags import (
    add_encoder_flags,
    add_verifier_flags,
    device_of,
    encoder_options,
    settings_of_verifier,
)
from specdec_plugins.inference.loading import build_task
from specdec_plugins.inference.pair_folder import ENCODERS
from specdec_plugins.inference.text import build_segmenters
from specdec_plugins.jobs.make_pair.job import PairJob
from specdec_plugins.jobs.make_pair.make import make, rehearse
from specdec_plugins.jobs.make_pair.text import check_enough


def hours(text: str) -> float:
    """Return a number of hours, as the type of a flag."""
    if not 0 < (value := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: must be more than 0")
    return value


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add_verifier_flags(parser, "a checkpoint, or a folder of verifier.pt or of transformers")
    add("sources", metavar="SOURCES", type=Path, help="raw text in the source language")
    add("out", metavar="OUT", type=Path, help="the folder to make; the pair is OUT/pair")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument(
        "--hours", metavar="H", type=hours, default=4.0, help="hours for all stages (4)"
    )
    budget.add_argument(
        "--updates", metavar="N", type=positive, help="updates of the drafter's training"
    )
    add("--half", action="store_true", help="store the verifier in float16")
    add("--workers", metavar="N", type=positive, help="processes that distil (needs Ray)")
    add("--dry-run", action="store_true", help="print the recipe and the hours to expect")
    add("--cpu", action="store_true", help="use no GPU")
    add("--quiet", action="store_true", help="print nothing but warnings and errors")
    add_encoder_flags(parser)
    args = parser.parse_args(argv)
    if separators := re.findall(r"[:,]|\$\{", str(args.out)):
        parser.error(f"OUT {args.out}: fairseq splits paths at {separators[0]!a}; name another")
    return args


def job_of(args: argparse.Namespace) -> PairJob:
    """Return the job of a command line."""
    if not args.sources.is_file():
        raise InferenceError(f"SOURCES {args.sources}: must be a file, which is read several times")
    check_enough(args.sources)
    options: JsonObject = {"device": device_of(args)}
    encoders = {name: getattr(args, name) for name in ENCODERS}
    encoders["encoder_options"] = encoder_options(args)
    if any(encoders.values()):
        options |= encoders
    settings = settings_of_verifier(args, **options)
    task = build_task(settings).cfg
    if task.source_lang == task.target_lang:
        name = f"{task.target_lang}_out"
        raise ConfigError(
            f"-s {task.source_lang} -t {task.target_lang}: source and target would have the same "
            f"files; copy the target's dictionary to dict.{name}.txt, and give -t {name}"
        )
    return PairJob(
        replace(settings, source_lang=task.source_lang, target_lang=task.target_lang),
        args.sources,
        args.out,
        run,
        hours=None if args.updates else args.hours,
        updates=args.updates,
        half=args.half,
        workers=args.workers,
        quiet=args.quiet,
    )


def run(module: str, flags: Sequence[object]) -> str:
    """Run another command in this process; return what it prints."""
    main = import_module(f"specdec_plugins.cli.{module}").main
    with redirect_stdout(io.StringIO()) as printed:
        # Without the wrapper of commands: this command says why it failed.
        main.__wrapped__([*map(str, flags)])
    return printed.getvalue()


@command("interrupted; what is done is kept, the same command goes on")
def main(argv: Sequence[str]) -> int:
    """Return the exit status: 0, or 130 for a training that was interrupted."""
    args = parse(argv)
    job = job_of(args)
    build_segmenters(job.verifier)  # or says what they lack
    if args.dry_run:
        put("\n".join(rehearse(job)) + "\n")
        return 0
    if make(job)["train"]["interrupted"]:
        job.say("interrupted: the best drafter so far is in its place, the same command goes on")
        return 130
    job.say(
        f"{job.layout.pair} is made; {job.layout.card} says how, how fast it is, what to do next"
    )
    return 0
