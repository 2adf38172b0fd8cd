r"""Extract a verifier's encoder, so that `fairseq-train --arch block` starts from it.

    scripts/encoder_initial.py verifier.pt initial_checkpoint.pt
    fairseq-train ... --arch block --restore-file initial_checkpoint.pt \
        --reset-optimizer --reset-meters --reset-lr-scheduler --reset-dataloader

The drafter's decoder starts from random weights. Resume an interrupted training without
`--restore-file` and the `--reset` flags; otherwise it starts again. `--init-encoder-from
verifier.pt` does the same without a file in between.
"""

from __future__ import annotations

from collections.abc import Sequence

from specdec_plugins.checkpoints.config import AS_TRANSFORMER
from specdec_plugins.checkpoints.pair import write_initial_checkpoint
from specdec_plugins.files.command import Parser, command, put
from specdec_plugins.files.output import reserved


@command()
def main(argv: Sequence[str]) -> None:
    """Write the checkpoint."""
    parser = Parser(__doc__)
    parser.add_argument("verifier", metavar="VERIFIER", help="a checkpoint of fairseq-train")
    parser.add_argument("output", metavar="OUTPUT", help="the file to write")
    parser.add_argument("--as-transformer", action="store_true", help=AS_TRANSFORMER)
    args = parser.parse_args(argv)
    with reserved([("OUTPUT", args.output)], [("VERIFIER", args.verifier)]):
        names = write_initial_checkpoint(args.verifier, args.output, args.as_transformer)
    put(f"{args.output}: {len(names)} entries of the encoder, none of the decoder\n")
