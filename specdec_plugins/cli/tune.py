"""Find the fastest way to decode on this machine, and store it for `--controller auto`.

    specdec-tune PAIR --batch 1 8 32 --precision int8

It tries AR (greedy, no drafts) by our loop and by CTranslate2, trees of several sizes, and drafts
in int8, beside stock fairseq's greedy search. With the same flags and `--controller auto`, the
default, specdec-translate then decodes in the fastest way. `--check` times the stored way and its
nearest rivals again, on other lines, and stores nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from statistics import median

import torch

from specdec_plugins.evaluation.table import NAMES, STOCK, markdown, spread, titled
from specdec_plugins.evaluation.texts import read_text
from specdec_plugins.evaluation.tuning import (
    Trial,
    example,
    lines_to_try,
    list_modes,
    rivals,
)
from specdec_plugins.files.command import command, positive, put
from specdec_plugins.files.errors import counted
from specdec_plugins.files.output import write_json
from specdec_plugins.inference.flags import TranslationParser, make_settings
from specdec_plugins.inference.settings import CTRANSLATE2
from specdec_plugins.inference.systems import AR
from specdec_plugins.inference.tuned_modes import (
    STEP_BY_STEP,
    Table,
    Timed,
    describe,
    load_table,
    table_path,
)
from specdec_plugins.jobs import progress
from specdec_plugins.machine import choose_threads, processor_name

SHOWN = ("help", "data", "path", "AR_path", "engine", "precision", "cpu", "quiet", "batch")
#: The library of each extra that adds ways to decode.
EXTRAS = {"int8": "onnxruntime", "ctranslate2": "ctranslate2"}


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = TranslationParser(__doc__, argv, (*SHOWN, "no_progress_bar"))
    add = parser.group.add_argument
    add("--batch", metavar="N", type=positive, nargs="+", default=[1], help="batch sizes (1)")
    add("--input-path", metavar="FILE", help="text to decode (example.LANG in the pair's folder)")
    add("--check", action="store_true", help="is the stored way the fastest for other lines, too?")
    return parser.parse(argv)


@command()
def main(argv: Sequence[str]) -> None:
    """Time all modes at every batch size, print the tables, and store them."""
    args = parse(argv)
    sizes = list(dict.fromkeys(args.batch))
    # On a CPU it depends on the machine what pays.
    args.batch = sizes[0]
    args.cpu = True
    settings = make_settings(args)
    if not settings.follows_tables:
        raise ValueError(
            "no run follows a table with one of these flags; give no --strategy but AR, no "
            "--AR-backend, --controller, --drafts, --beam, --beta, --tau, --sampling, nor options "
            "of beam search"
        )
    choose_threads()
    threads = torch.get_num_threads()
    key = describe(settings, threads)
    stored = None
    if args.check:
        stored = load_table(key)
        if stored is None:
            raise ValueError("--check: no table of this pair is stored here; run without it first")
    with progress(args.no_progress_bar, "loading") as bar:
        modes = rivals(stored, settings, sizes) if stored else list_modes(settings)
        trial = Trial(settings, modes, bar.set_description_str)
        lines = read_text(args.input_path or example(settings.data), None)
        trial.load(sizes)
        batches = {s: trial.run(s, lines_to_try(lines, s, args.check)) for s in sizes}

    def show(text: str) -> None:
        if not args.quiet:
            put(text)

    show(
        f"{processor_name()}, {counted(threads, 'thread')}, {settings.precision}, {settings.rule}\n"
    )
    for size, timed in batches.items():
        show("\n".join(_table(size, timed)) + "\n")
        if stored is not None:
            named = {item.mode: item for item in timed}
            # In batches that the writer leaves to ONNX Runtime, both are the same.
            named.setdefault(STEP_BY_STEP, named[AR])
            # A stored mode that cannot be loaded here is passed over, as by as_tuned.
            chosen = next(named[item.mode] for item in stored.at(size) if item.mode in named)
            slower = 100 * (chosen.middle / timed[0].middle - 1)
            how = f"{slower:.1f} % slower than" if slower else "still"
            show(f"Stored: {chosen.mode}, {how} the fastest.\n")
    if missing := [extra for extra, library in EXTRAS.items() if find_spec(library) is None]:
        show(f"\nNot tried: what pip install 'specdec-plugins[{','.join(missing)}]' adds.\n")
    if stored is None:
        ours = {size: [t for t in timed if t.mode != STOCK] for size, timed in batches.items()}
        if before := load_table(key):
            ours = before.batches | ours
        path = table_path(key)
        write_json(path, Table(key, ours))
        show(f"\nStored in {path}.\n")
        show(f"With these flags, specdec-translate {args.data} now decodes so.\n")
    else:
        show("\nNothing is stored.\n")


def _table(batch: int, timed: Sequence[Timed]) -> Iterator[str]:
    """Yield the lines of a table of all modes, with ratios within each round, and the fastest."""
    base = next(t for name in (STOCK, AR) for t in timed if t.mode == name)
    rows = []
    ratios = {}
    times = f"times {NAMES[base.mode]}"
    for item in timed:
        ratios[item.mode] = [a / b for a, b in zip(base.milliseconds, item.milliseconds)]
        rows.append(
            [
                titled(item.mode),
                spread(item.milliseconds),
                spread(ratios[item.mode], 2),
                str(len(item.milliseconds)),
            ]
        )
    yield ""
    yield from markdown((f"batch {batch}", "ms a sentence", times, "rounds"), rows)
    best = next(item.mode for item in timed if item.mode != STOCK)
    yield f"\nBatch {batch}: {titled(best)}, {median(ratios[best]):.1f} {times}."
    if best.startswith((AR, CTRANSLATE2)):
        yield f"At batch {batch}, drafts do not pay for this verifier here."
