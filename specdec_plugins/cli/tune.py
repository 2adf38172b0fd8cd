"""Find the fastest way to decode with a pair on this machine, and keep it for `--controller auto`.

    specdec-tune PAIR
    specdec-tune PAIR --batch 1 8 32 --precision int8

It tries AR by our loop, AR by CTranslate2 where that is installed, and trees of 4, 6, 8, 12 and 16
tokens; with strict acceptance also with drafts in int8 where NNCF is installed. After each round
the slower half is dropped, until three are left. Loading, in which models are compiled or
converted, is timed apart.

The table is kept for this pair, machine, number of threads, precision, acceptance rule and these
versions. With strict acceptance `--controller auto`, the default, takes the fastest way of the
batch size from then on, and `--strategy AR` the faster backend. Relaxed and sampled output never
follow it: they would depend on timings. The other flags are those of inference.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import torch
from tqdm import tqdm

from specdec_plugins.decoding.controllers.registry import AUTO
from specdec_plugins.evaluation.texts import read_text
from specdec_plugins.evaluation.tuning import GREEDY, Trial, example, lines_to_try, list_ways
from specdec_plugins.files.command import command, program, put
from specdec_plugins.files.errors import counted
from specdec_plugins.inference.flag_checks import refuse_flags
from specdec_plugins.inference.flags import TranslationParser, make_settings
from specdec_plugins.inference.settings import Settings
from specdec_plugins.inference.threads import choose_threads
from specdec_plugins.inference.ways import Table, Timed, describe, save_table
from specdec_plugins.machine import processor_name

PROG = program("tune.py")


WHY = "is what is to be found out; leave it out"
FOUND_OUT = [
    ("--strategy", "specdec", WHY),
    ("--controller", AUTO, WHY),
    ("--AR-backend", "auto", WHY),
]


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = TranslationParser(PROG, __doc__, argv)
    # A flag of a single run takes several values here.
    parser.group.conflict_handler = "resolve"
    add = parser.group.add_argument
    add("--batch", metavar="N", type=int, nargs="+", default=[1], help="sentences at a time (1)")
    add("--input-path", metavar="FILE", help="text to try (the example.LANG of the pair's folder)")
    add("--no-progress-bar", action="store_true", help="no progress bar on a terminal")
    return parser.parse(argv)


@command(PROG)
def main(argv: Sequence[str]) -> None:
    """Try all ways at every batch size, tell, and keep what was found."""
    args = parse(argv)
    refuse_flags(args, FOUND_OUT)
    sizes = list(dict.fromkeys(args.batch))
    settings = make_settings(argparse.Namespace(**{**vars(args), "batch": sizes[0]}))
    if torch.device(settings.device).type != "cpu":
        raise ValueError(
            "tuning is for CPUs, where it depends on the machine what pays; give --cpu"
        )
    for size in sizes:
        replace(settings, batch=size)  # says what cannot be
    choose_threads()
    key = describe(settings, torch.get_num_threads())
    # None hides it where there is no terminal.
    with tqdm(disable=args.no_progress_bar or None, unit="pass") as bar:

        def note(what: str) -> None:
            bar.set_description_str(what)
            bar.update()

        trial = Trial(settings, list_ways(settings), note)
        lines = read_text(args.input_path or example(settings.data), None)
        trial.load()
        found = {size: trial.run(size, lines_to_try(lines, size)) for size in sizes}
    made = datetime.now(timezone.utc).isoformat(timespec="seconds")
    path = save_table(Table(key, made, found))
    if not args.quiet:
        put("\n".join(_tell(settings, trial, found, path)) + "\n")


def _tell(
    settings: Settings, trial: Trial, found: dict[int, list[Timed]], path: Path
) -> Iterator[str]:
    threads = counted(torch.get_num_threads(), "thread")
    yield f"{processor_name()}, {threads}, {settings.precision}, {settings.rule}"
    for size, timed in found.items():
        base = next(one for one in timed if one.way == GREEDY).milliseconds
        yield f"\n| batch {size} | ms a sentence | x {GREEDY} | rounds |\n|---|---|---|---|"
        for one in timed:
            took = one.milliseconds
            ratios = sorted(a / b for a, b in zip(base, took))
            yield (
                f"| {one.way} | {one.middle:.1f} ({min(took):.1f} to {max(took):.1f}) | "
                f"{ratios[len(ratios) // 2]:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) | "
                f"{len(took)} |"
            )
        yield f"\nBatch {size}: {timed[0].way}."
    loaded = ", ".join(f"{name} {seconds:.1f}" for name, seconds in trial.seconds.items())
    yield f"\nSeconds to load, compile and convert: {loaded}."
    yield f"Kept for --controller auto in {path}."
