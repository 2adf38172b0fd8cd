"""Average the weights of checkpoints of one training, for inference.

    scripts/average_checkpoints.py --inputs SAVE_DIR --num-update-checkpoints 10 --output avg.pt
    scripts/average_checkpoints.py --inputs a.pt b.pt c.pt --output avg.pt

Options are those of fairseq's script of this name. Nothing of the files is run. The weights written
are float32; scripts/export_checkpoint.py --half makes them float16, for shipping.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from specdec_plugins.checkpoints.architectures import AS_TRANSFORMER
from specdec_plugins.checkpoints.average import (
    EPOCHS,
    UPDATES,
    average_checkpoints,
    last_checkpoints,
)
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.help import Parser
from specdec_plugins.files.lock import reserved
from specdec_plugins.files.streams import put
from specdec_plugins.files.terminal import command, program

PROG = program("average_checkpoints.py")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(PROG, __doc__)
    add = parser.add_argument
    add("--inputs", nargs="+", required=True, metavar="PATH", help="checkpoints, or one folder")
    add("--output", required=True, metavar="FILE", help="the file to write")
    counts = parser.add_mutually_exclusive_group()
    for name in ("epoch", "update"):
        what = f"take the last N that were saved by {name} in the folder --inputs"
        counts.add_argument(f"--num-{name}-checkpoints", type=int, metavar="N", help=what)
    add("--checkpoint-upper-bound", type=int, metavar="N", help="the last epoch or update to take")
    add("--as-transformer", action="store_true", help=AS_TRANSFORMER)
    args = parser.parse_args(argv)
    count = args.num_epoch_checkpoints
    count = args.num_update_checkpoints if count is None else count
    if count is not None:
        if count < 1:
            name = "update" if args.num_epoch_checkpoints is None else "epoch"
            parser.error(f"--num-{name}-checkpoints {count}: must be at least 1")
        if len(args.inputs) != 1:
            parser.error("--inputs: give one folder to take the last N checkpoints of")
    elif args.checkpoint_upper_bound is not None:
        parser.error("--checkpoint-upper-bound: needs --num-epoch- or --num-update-checkpoints")
    return args


def find_inputs(args: argparse.Namespace) -> list[str]:
    """Return the checkpoints that the command line names, or those of its folder, the newest first.

    Raises:
        CheckpointError, InferenceError: a folder of too few, or without a number.
    """
    if count := args.num_update_checkpoints or args.num_epoch_checkpoints:
        named = UPDATES if args.num_update_checkpoints else EPOCHS
        return last_checkpoints(args.inputs[0], count, named, args.checkpoint_upper_bound)
    for path in args.inputs:
        if os.path.isdir(path):
            raise InferenceError(
                f"--inputs {path}: is a folder; give --num-update-checkpoints N or "
                "--num-epoch-checkpoints N, or name checkpoints in it"
            )
    return list(args.inputs)


@command(PROG)
def main(argv: Sequence[str]) -> None:
    args = parse(argv)
    inputs = find_inputs(args)
    with reserved([("--output", args.output)], [("--inputs", path) for path in inputs]):
        size = average_checkpoints(inputs, args.output, args.as_transformer)
    put(f"{args.output}: {len(inputs)} checkpoints, {size / 1e6:.1f} MB\n")
