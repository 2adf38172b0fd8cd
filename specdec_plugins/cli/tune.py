"""Find the fastest mode of decoding with a pair here, and store it for `--controller auto`.

    specdec-tune PAIR --batch 1 8 32 --precision int8

It tries AR by our loop and by CTranslate2, trees of several sizes, and with strict acceptance
drafts in int8, as far as that is installed. The table is stored for this pair, machine, number of
threads, precision, rule and these versions. With strict acceptance `--controller auto`, the
default, takes the fastest mode of the batch size from then on, and `--strategy AR` the faster
backend. The other flags are specdec-translate's.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone

import torch
from tqdm import tqdm

from specdec_plugins.evaluation.table import markdown, spread
from specdec_plugins.evaluation.texts import read_text
from specdec_plugins.evaluation.tuning import GREEDY, Trial, example, lines_to_try, list_modes
from specdec_plugins.files.command import command, positive, put
from specdec_plugins.files.errors import counted
from specdec_plugins.inference.flags import TranslationParser, make_settings
from specdec_plugins.inference.tuned_modes import Table, Timed, describe, save_table
from specdec_plugins.machine import choose_threads, processor_name

SHOWN = ("help", "data", "path", "AR_path", "engine", "precision", "cpu", "quiet", "batch")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = TranslationParser(__doc__, argv, (*SHOWN, "no_progress_bar"))
    add = parser.group.add_argument
    add("--batch", metavar="N", type=positive, nargs="+", default=[1], help="batch sizes (1)")
    add("--input-path", metavar="FILE", help="text to try (the example.LANG of the pair's folder)")
    return parser.parse(argv)


@command()
def main(argv: Sequence[str]) -> None:
    """Time all modes at every batch size, print the tables, and store them."""
    args = parse(argv)
    sizes = list(dict.fromkeys(args.batch))
    # On a CPU it depends on the machine what pays.
    args.batch, args.cpu = sizes[0], True
    settings = make_settings(args)
    choose_threads()
    threads = torch.get_num_threads()
    with tqdm(disable=args.no_progress_bar or None, unit="pass") as bar:

        def note(what: str) -> None:
            bar.set_description_str(what)
            bar.update()

        trial = Trial(settings, list_modes(settings), note)
        lines = read_text(args.input_path or example(settings.data), None)
        trial.load()
        batches = {size: trial.run(size, lines_to_try(lines, size)) for size in sizes}
    made = datetime.now(timezone.utc).isoformat(timespec="seconds")
    stored = save_table(Table(describe(settings, threads), made, batches))
    if args.quiet:
        return
    about = processor_name(), counted(threads, "thread"), settings.precision, str(settings.rule)
    put(f"{', '.join(about)}\n")
    for size, timed in batches.items():
        put("".join(f"{line}\n" for line in _table(size, timed)))
    loaded = ", ".join(f"{name} {seconds:.1f}" for name, seconds in trial.seconds.items())
    put(f"\nSeconds to load, compile and convert: {loaded}.\n")
    put(f"Stored for --controller auto in {stored}.\n")


def _table(batch: int, timed: Sequence[Timed]) -> Iterator[str]:
    """Yield the lines of a table of all modes, with ratios to AR by our loop within each round."""
    base = next(item for item in timed if item.mode == GREEDY).milliseconds
    rows = []
    for item in timed:
        ratios = [a / b for a, b in zip(base, item.milliseconds)]
        figures = spread(item.milliseconds), spread(ratios, 2), str(len(ratios))
        rows.append([str(item.mode), *figures])
    yield ""
    yield from markdown((f"batch {batch}", "ms a sentence", f"x {GREEDY}", "rounds"), rows)
    yield f"\nBatch {batch}: {timed[0].mode}."
