"""Make a pair of your verifier: train a drafter for it, from text of its source language.

    specdec-make-pair VERIFIER SOURCES OUT --hours 4
    specdec-make-pair VERIFIER SOURCES OUT --dictionaries DIR --bpe sentencepiece \\
        --sentencepiece-model FILE --updates 3000

VERIFIER is the checkpoint of a fairseq Transformer, SOURCES raw text, one sentence a line; no
references are needed. In the end OUT/pair is a folder that every command takes, and OUT/README.md
its card. The verifier is checked and translates the text. A drafter sized from it learns to foresee
what it wrote; held-out lines tell how well. Without --tokenizer and --bpe the text is segmented by
what lies beside the dictionaries.

If it was stopped, the same command goes on. If it is interrupted (Ctrl-C) while it trains, it
exports and measures the best drafter so far.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path

import torch

from specdec_plugins.checkpoints.architectures import AS_TRANSFORMER
from specdec_plugins.decoding.acceptance.rules import rule_named
from specdec_plugins.files.command import Parser, command, program, put
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.inference import Settings
from specdec_plugins.inference.flags import add_encoder_flags, encoder_options
from specdec_plugins.inference.loading import build_task
from specdec_plugins.inference.pair_folder import ENCODERS, verifier_settings
from specdec_plugins.jobs.make_pair.commands import PREPROCESS, Command
from specdec_plugins.jobs.make_pair.job import PairJob
from specdec_plugins.jobs.make_pair.make import Making
from specdec_plugins.jobs.make_pair.progress import Progress
from specdec_plugins.jobs.make_pair.rehearsal import rehearse
from specdec_plugins.jobs.make_pair.text import check_enough
from specdec_plugins.machine import python_path, python_program

PROG = program("make_pair.py")
HOURS = 4.0
GUARD = """\
import os, signal, threading
signal.signal(signal.SIGINT, signal.SIG_IGN)
threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
"""
"""Ends a child with its parent, and leaves interruptions to the parent. A read of ``sys.stdin``
would hold a lock for which Python waits, and aborts, when the child is done."""
CHILD = GUARD + "from specdec_plugins.cli.{name} import main; sys.exit(main())"
PREPROCESSING = "from fairseq_cli.preprocess import cli_main; cli_main()"


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(PROG, __doc__)
    add = parser.add_argument
    add("verifier", metavar="VERIFIER", type=Path, help="a checkpoint, or a folder of verifier.pt")
    add("sources", metavar="SOURCES", type=Path, help="raw text of the source language")
    add("out", metavar="OUT", type=Path, help="the folder to make; OUT/pair will be the pair")
    add("--dictionaries", metavar="DIR", type=Path, help="default: the folder of the checkpoint")
    add("-s", "--source-lang", metavar="LANG", help="default: the checkpoint's")
    add("-t", "--target-lang", metavar="LANG", help="default: the checkpoint's")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--hours", metavar="H", type=float, help=f"of all stages ({HOURS:g})")
    budget.add_argument("--updates", metavar="N", type=int, help="of the drafter's training")
    add("--arch", choices=("block_causal", "block"), default="block_causal", help="the drafter")
    add("--rule", metavar="RULE", default="strict", help="strict, relaxed or relaxed:BETA:TAU")
    add("--heads", action="store_true", help="train an acceptance head, too")
    add("--as-transformer", action="store_true", help=AS_TRANSFORMER)
    add("--half", action="store_true", help="store the verifier in float16")
    add("--workers", metavar="N", type=int, help="distil by so many processes (needs Ray)")
    add(
        "--dry-run", action="store_true", help="tell what would be done, and how long it would take"
    )
    add("--cpu", action="store_true", help="leave a GPU alone")
    add("--quiet", action="store_true", help="say nothing but warnings and errors")
    add("--no-progress-bar", action="store_true", help="no progress bar on a terminal")
    add_encoder_flags(parser)
    args = parser.parse_args(argv)
    for name in ("hours", "updates", "workers"):
        value = getattr(args, name)
        if value is not None and not 0 < value < 10**9:
            parser.error(f"--{name} {value}: must be above 0")
    if separators := re.findall(r"[:,]|\$\{", str(args.out)):
        parser.error(f"OUT {args.out}: fairseq splits paths at {separators[0]!a}; name another")
    return args


def job_of(args: argparse.Namespace) -> PairJob:
    """Return the job that a command line stands for."""
    check_enough(args.sources)
    found = verifier_settings(args.verifier, args.dictionaries)
    given = {name: getattr(args, name) for name in ENCODERS}
    if any(given.values()):
        found |= {**given, "encoder_options": encoder_options(args)}
    languages = {"source_lang": args.source_lang, "target_lang": args.target_lang}
    task = build_task(Settings(**found, **languages))
    gpu = torch.cuda.is_available() and not args.cpu
    return PairJob(
        Path(found["ar_path"]),
        args.sources,
        args.out,
        Path(found["data"]),
        (task.cfg.source_lang, task.cfg.target_lang),
        tokenizer=found.get("tokenizer"),
        bpe=found.get("bpe"),
        encoder_options=found.get("encoder_options", {}),
        hours=HOURS if args.hours is None and args.updates is None else args.hours,
        updates=args.updates,
        arch=args.arch,
        rule=rule_named(args.rule),
        heads=args.heads,
        half=args.half,
        as_transformer=args.as_transformer,
        workers=args.workers,
        device="cuda" if gpu else "cpu",
    )


class Here:
    """Runs commands in this process, but for what has a process of its own in fairseq, too."""

    def run(self, one: Command) -> str:
        """See :class:`specdec_plugins.jobs.make_pair.commands.Runner`."""
        if one.script == PREPROCESS:
            return self._preprocess(one)
        main = importlib.import_module(f"specdec_plugins.cli.{one.script}").main
        with redirect_stdout(io.StringIO()) as said:
            # What stops it is told by this command.
            status = main.__wrapped__(list(one.arguments))
        if status:
            last = said.getvalue().strip().rpartition("\n")[2]
            raise InferenceError(f"{one}: {last}")
        return said.getvalue()

    def _preprocess(self, one: Command) -> str:
        program = python_program(PREPROCESSING, *one.arguments)
        done = subprocess.run(program, capture_output=True, text=True, env=_environment())
        if done.returncode:
            raise InferenceError(f"{one}: {(done.stderr.strip() or '?').splitlines()[-1]}")
        return ""

    def watch(self, one: Command, log: Path, look: Callable[[], object]) -> None:
        """See :class:`specdec_plugins.jobs.make_pair.commands.Runner`."""
        program = python_program(CHILD.format(name=one.script), *one.arguments)
        with open(log, "ab") as file:
            child = subprocess.Popen(
                program, stdin=subprocess.PIPE, stdout=file, stderr=file, env=_environment()
            )
        try:
            while child.poll() is None:
                time.sleep(0.5)
                look()
        finally:
            child.kill()
            child.wait()
        if child.returncode:
            lines = log.read_text("utf-8", "replace").strip().splitlines()
            raise InferenceError(f"{lines[-1] if lines else one}; all that it said is in {log}")


def _environment() -> dict[str, str]:
    """That of other programs."""
    return {**os.environ, "PYTHONPATH": python_path(), "PYTHONUTF8": "1"}


@command(PROG, "interrupted; what is done is kept, the same command goes on")
def main(argv: Sequence[str]) -> int:
    """Returns the exit status: 0, 1 for what the run met with, 2 for the command line, 130 for a
    training that was interrupted."""
    args = parse(argv)
    job = job_of(args)
    progress = Progress(args.quiet, not args.no_progress_bar)
    if args.dry_run:
        put("".join(f"{line}\n" for line in rehearse(job, Here(), progress)))
        return 0
    making = Making(job, Here(), progress)
    if not making.make():
        progress.say(
            "interrupted: the best drafter so far is in its place, the same command goes on"
        )
        return 130
    progress.say(f"{making.layout.pair} is made; {making.layout.card} says how, and how fast it is")
    return 0
