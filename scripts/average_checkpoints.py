#!/usr/bin/env python3
"""Average the weights of checkpoints of one training, which often translates better than each.

    scripts/average_checkpoints.py --inputs SAVE_DIR --num-update-checkpoints 10 --output avg.pt
    scripts/average_checkpoints.py --inputs a.pt b.pt c.pt --output avg.pt

Files are read safely. The output has float32 weights, for inference.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import installed  # noqa: F401 (first)
import torch

import specdec_plugins.cli  # noqa: F401 (first: it registers, and silences fairseq)
from specdec_plugins.checkpoints.export import inference_state
from specdec_plugins.checkpoints.loading import load_upgraded, save_state
from specdec_plugins.files.command import Parser, command, positive
from specdec_plugins.files.errors import CheckpointError, ConfigError
from specdec_plugins.files.output import check_paths
from specdec_plugins.host.checkpoints import without_copies

#: Names of a training's checkpoints, by their number's kind.
PATTERNS = {"epoch": r"checkpoint(\d+)\.pt", "update": r"checkpoint_\d+_(\d+)\.pt"}


def last_checkpoints(folder: Path, by: str, count: int, bound: float) -> list[Path]:
    """Return the last checkpoints of a training, numbered by ``epoch`` or by ``update`` up to
    ``bound``."""
    name = re.compile(PATTERNS[by])
    found = {
        path: int(match[1]) for path in folder.iterdir() if (match := name.fullmatch(path.name))
    }
    numbers = {path: number for path, number in found.items() if number <= bound}
    if len(numbers) < count:
        raise CheckpointError(f"{folder}: holds {len(numbers)} such checkpoints, not {count}")
    return sorted(numbers, key=numbers.__getitem__)[-count:]


def average(paths: list[Path], output: Path, as_transformer: bool = False) -> None:
    """Write the mean of the weights of checkpoints, summed in float32."""
    first, *others = (load_upgraded(str(path), as_transformer) for path in paths)
    weights = without_copies(first["model"])
    total = {name: w.float() if w.is_floating_point() else w for name, w in weights.items()}
    for path, state in zip(paths[1:], others):
        model = without_copies(state["model"])
        if {n: w.shape for n, w in total.items()} != {n: w.shape for n, w in model.items()}:
            raise CheckpointError(f"{path}: is of another training than {paths[0]}")
        total = {name: w + model[name] if w.is_floating_point() else w for name, w in total.items()}
    shared: dict[object, torch.Tensor] = {}  # a table that is shared stays one
    means = {}
    for name, w in total.items():
        mean = w / len(paths) if w.is_floating_point() else w
        means[name] = shared.setdefault((weights[name].data_ptr(), w.shape), mean)
    save_state(inference_state(first, means), output)


@command()
def main(argv: Sequence[str]) -> None:
    """Average the checkpoints that the command line names."""
    parser = Parser(__doc__)
    parser.add_argument("--inputs", nargs="+", required=True, type=Path, metavar="PATH")
    parser.add_argument("--output", required=True, type=Path, metavar="FILE")
    parser.add_argument("--as-transformer", action="store_true")
    counts = parser.add_mutually_exclusive_group()
    for by in PATTERNS:
        counts.add_argument(f"--num-{by}-checkpoints", type=positive, metavar="N", dest=by)
    parser.add_argument("--checkpoint-upper-bound", type=positive, metavar="N", default=math.inf)
    args = parser.parse_args(argv)
    paths = args.inputs
    wanted = {by: count for by in PATTERNS if (count := getattr(args, by))}
    if wanted and len(paths) > 1:
        raise ConfigError(f"--inputs {paths[0]} {paths[1]}: give one folder of checkpoints")
    if not wanted and args.checkpoint_upper_bound < math.inf:
        raise ConfigError("--checkpoint-upper-bound: give --num-update-checkpoints, too")
    for by, count in wanted.items():
        paths = last_checkpoints(args.inputs[0], by, count, args.checkpoint_upper_bound)
    check_paths([("--output", args.output)], [("--inputs", path) for path in paths])
    average(paths, args.output, args.as_transformer)


if __name__ == "__main__":
    sys.exit(main())
