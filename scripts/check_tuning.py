#!/usr/bin/env python3
"""Try whether what specdec-tune finds on a pair's example holds for other texts.

    scripts/check_tuning.py PAIR --input-path FILE ... --json FILE

For each precision and batch size it finds a way as specdec-tune does, on the example of the pair.
Then it times all ways there are on lines that a seed draws from each text (two batches, and at
least 24), in seven alternating rounds. After a round the slower half is dropped, until three are
left; AR, CTranslate2 and the way that was found are never dropped. It tells how fast that way is
beside the fastest of all, and beside CTranslate2: their time over its time in each round, of which
the median, the least and the greatest are told. The fastest is known afterwards only, which favours
it. The other flags are those of inference.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from random import Random
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from specdec_plugins.cli.tune import FOUND_OUT
from specdec_plugins.evaluation.texts import read_text
from specdec_plugins.evaluation.tuning import GREEDY, Trial, example, lines_to_try, list_ways
from specdec_plugins.files.command import command
from specdec_plugins.files.lines import Line
from specdec_plugins.files.output import write_json
from specdec_plugins.inference.flag_checks import refuse_flags
from specdec_plugins.inference.flags import TranslationParser, make_settings
from specdec_plugins.inference.report import versions
from specdec_plugins.inference.settings import CTRANSLATE2, Settings
from specdec_plugins.inference.threads import choose_threads
from specdec_plugins.inference.ways import Timed, Way
from specdec_plugins.machine import cores, processor_name

PROG = "check_tuning.py"
ROUNDS, FINALISTS = 7, 3
CTRANSLATED = Way(ar_backend=CTRANSLATE2)


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = TranslationParser(PROG, __doc__, argv)
    parser.group.conflict_handler = "resolve"
    add = parser.group.add_argument
    add("--input-path", metavar="FILE", nargs="+", required=True, help="texts to draw lines from")
    add("--batch", metavar="N", type=int, nargs="+", default=[1, 8, 32], help="sentences (1 8 32)")
    add("--precision", nargs="+", default=["float32", "int8"], help="precisions (float32 int8)")
    add("--json", metavar="FILE", required=True, help="write the figures there")
    return parser.parse(argv)


def drawn(lines: list[Line], batch: int, seed: int) -> list[Line]:
    """Lines of a text, as many as a batch size is timed with."""
    return Random(seed).sample(lines, min(max(24, 2 * batch), len(lines)))


def beside(found: Timed, other: Timed) -> list[float]:
    """The time of another way over that of the one found, of each round, the least first."""
    return sorted(b / a for a, b in zip(found.milliseconds, other.milliseconds, strict=True))


def check(settings: Settings, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Time all ways on every text at every batch size."""
    trial = Trial(settings, list_ways(settings), lambda what: print(what, file=sys.stderr))
    trial.load()
    known = read_text(example(settings.data), None)
    chosen = {size: trial.run(size, lines_to_try(known, size))[0].way for size in args.batch}
    for path in args.input_path:
        lines = [line for line in read_text(path, None) if line.text.strip()]
        for size, way in chosen.items():
            kept = (GREEDY, CTRANSLATED, way)
            longer = replace(trial, rounds=ROUNDS, finalists=FINALISTS, kept=kept)
            timed = longer.run(size, drawn(lines, size, args.seed))
            mine = next(one for one in timed if one.way == way)
            row = {
                "pair": Path(settings.data).name,
                "text": Path(path).name,
                "precision": settings.precision,
                "batch": size,
                "found": str(way),
                "fastest": str(timed[0].way),
                "fastest over found": beside(mine, timed[0]),
                "milliseconds": {str(one.way): one.milliseconds for one in timed},
            }
            for one in timed:
                if one.way == CTRANSLATED:
                    row["CTranslate2 over found"] = beside(mine, one)
            yield row


@command(PROG)
def main(argv: list[str]) -> None:
    """Check every precision; the file is written anew after each row."""
    args = parse(argv)
    refuse_flags(args, FOUND_OUT)
    ones = ({**vars(args), "precision": one, "batch": args.batch[0]} for one in args.precision)
    every = [make_settings(argparse.Namespace(**one)) for one in ones]
    choose_threads()
    rows = []
    for settings in every:
        for row in check(settings, args):
            rows.append(row)
            ratios = row["fastest over found"]
            print(
                f"{row['pair']} {row['text']} {row['precision']} batch {row['batch']}: found "
                f"{row['found']}; fastest {row['fastest']}, {ratios[len(ratios) // 2]:.2f} "
                f"({ratios[0]:.2f} to {ratios[-1]:.2f})",
                flush=True,
            )
            machine = {
                "processor": processor_name(),
                "cores": cores(),
                "threads": torch.get_num_threads(),
                "versions": versions(),
                "last_run": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            }
            write_json(Path(args.json), {"machine": machine, "checked": rows}, "--json")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
