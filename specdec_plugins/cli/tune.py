"""Find the fastest way to decode with a pair on this machine, and keep it for `--controller auto`.

    specdec-tune PAIR
    specdec-tune PAIR --batch 1 8 32 --precision int8

It tries AR by our loop, AR by CTranslate2 where that is installed, and trees of 4, 6, 8, 12 and 16
tokens; with strict acceptance also with drafts in int8 where an engine has it. After each round
the slower half is dropped, until three are left. Loading, in which models are compiled or
converted, is timed apart.

The table is kept for this pair, machine, number of threads, precision, acceptance rule and these
versions. With strict acceptance `--controller auto`, the default, takes the fastest way of the
batch size from then on, and `--strategy AR` the faster backend. Relaxed and sampled output never
follow it: they would depend on timings. --check FILE times all ways on other texts, in seven
rounds, beside the way that was found. The other flags are those of specdec-translate.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from itertools import chain, product
from pathlib import Path
from random import Random

import torch
from tqdm import tqdm

from specdec_plugins.evaluation.table import markdown, spread
from specdec_plugins.evaluation.texts import read_text
from specdec_plugins.evaluation.tuning import GREEDY, Trial, example, lines_to_try, list_ways
from specdec_plugins.files.command import command, program, put
from specdec_plugins.files.errors import counted
from specdec_plugins.files.lines import Line
from specdec_plugins.inference.flags import TranslationParser, make_settings
from specdec_plugins.inference.settings import Settings
from specdec_plugins.inference.threads import choose_threads
from specdec_plugins.inference.ways import Table, Timed, Way, describe, save_table
from specdec_plugins.machine import processor_name

PROG = program("tune.py")
CTRANSLATED = Way(ar_backend="ctranslate2")
CHECK_ROUNDS = 7
SHOWN = {
    *("help", "data", "path", "AR_path", "engine", "precision", "cpu", "quiet"),
    *("batch", "input_path", "check", "no_progress_bar"),
}


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = TranslationParser(PROG, __doc__, argv, SHOWN)
    # A flag of a single run takes several values here.
    parser.group.conflict_handler = "resolve"
    add = parser.group.add_argument
    add("--batch", metavar="N", type=int, nargs="+", default=[1], help="sentences at a time (1)")
    add("--input-path", metavar="FILE", help="text to try (the example.LANG of the pair's folder)")
    add("--check", metavar="FILE", nargs="+", default=[], help="texts to try what was found on")
    add("--no-progress-bar", action="store_true", help="no progress bar on a terminal")
    return parser.parse(argv)


@command(PROG)
def main(argv: Sequence[str]) -> None:
    """Try all ways at every batch size, tell, and keep what was found."""
    args = parse(argv)
    if (args.strategy, args.controller, args.ar_backend) != ("specdec", "auto", "auto"):
        raise ValueError(
            "--strategy, --controller, --AR-backend: are to be found out; leave them out"
        )
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
        checked = []
        for text, size, lines in _drawn(args.check, sizes, args.seed):
            way = found[size][0].way
            timed = trial.run(size, lines, CHECK_ROUNDS, (GREEDY, CTRANSLATED, way))
            checked.append(_table(f"{Path(text).name}, batch {size}", way, timed))
    made = datetime.now(timezone.utc).isoformat(timespec="seconds")
    path = save_table(Table(key, made, found))
    if not args.quiet:
        put("\n".join([*_tell(settings, trial, found, path), *chain(*checked)]) + "\n")


def _drawn(
    paths: Sequence[str], sizes: Sequence[int], seed: int
) -> Iterator[tuple[str, int, list[Line]]]:
    """Yield each text with lines that a seed draws from it: two batches, and at least 24."""
    for path, size in product(paths, sizes):
        lines = [line for line in read_text(path, None) if line.text.strip()]
        yield path, size, Random(seed).sample(lines, min(max(24, 2 * size), len(lines)))


def _tell(
    settings: Settings, trial: Trial, found: dict[int, list[Timed]], path: Path
) -> Iterator[str]:
    threads = counted(torch.get_num_threads(), "thread")
    yield f"{processor_name()}, {threads}, {settings.precision}, {settings.rule}"
    for size, timed in found.items():
        yield from _table(f"batch {size}", GREEDY, timed)
        yield f"\nBatch {size}: {timed[0].way}."
    loaded = ", ".join(f"{name} {seconds:.1f}" for name, seconds in trial.seconds.items())
    yield f"\nSeconds to load, compile and convert: {loaded}."
    yield f"Kept for --controller auto in {path}."


def _table(title: str, beside: Way, timed: Sequence[Timed]) -> Iterator[str]:
    """Yield a table of all ways; ``x`` is over one of them, within each round."""
    base = next(item for item in timed if item.way == beside).milliseconds
    yield ""
    rows = []
    for item in timed:
        ratios = [a / b for a, b in zip(base, item.milliseconds)]
        rounds = str(len(item.milliseconds))
        rows.append([str(item.way), spread(item.milliseconds), spread(ratios, 2), rounds])
    yield from markdown((title, "ms a sentence", f"x {beside}", "rounds"), rows)
