"""Write a checkpoint to ship: weights without optimizer state and paths.

    specdec-export runs/drafter/checkpoint_best.pt drafter.pt -s en -t de

All commands that take a checkpoint accept the new file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from specdec_plugins.checkpoints.config import AS_TRANSFORMER
from specdec_plugins.checkpoints.export import Training, export_checkpoint
from specdec_plugins.files.command import Parser, command, put
from specdec_plugins.files.output import reserved


@command()
def main(argv: Sequence[str]) -> None:
    """Write the checkpoint."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add("source", metavar="SOURCE", help="a checkpoint of fairseq-train")
    add("target", metavar="TARGET", help="the file to write")
    add("-s", "--source-lang", metavar="LANG", help="language to record")
    add("-t", "--target-lang", metavar="LANG", help="language to record")
    add("--dictionaries", metavar="DIR", help="dictionaries of its training")
    count = (
        "draft only the N most frequent tokens of --draft-text, which is faster, and leave rare "
        "tokens to the verifier (needs --dictionaries; train heads for the new file)"
    )
    add("--draft-vocabulary", metavar="N", type=int, help=count)
    add("--draft-text", metavar="FILE", help="segmented target text, ideally the verifier's")
    add("--as-transformer", action="store_true", help=AS_TRANSFORMER)
    add("--half", action="store_true", help="write float16 weights, which may change some outputs")
    args = parser.parse_args(argv)
    if (args.draft_vocabulary is None) != (args.draft_text is None):
        raise ValueError("--draft-vocabulary N, --draft-text: give both, or neither")
    inputs = [("SOURCE", args.source), ("--draft-text", args.draft_text)]
    folder = Path(args.dictionaries or os.devnull)
    inputs += [("--dictionaries", str(path)) for path in folder.glob("dict.*.txt")]
    training = Training((args.source_lang, args.target_lang), args.dictionaries)
    draft_from = (args.draft_vocabulary, args.draft_text) if args.draft_text else None
    options = training, draft_from, args.as_transformer, args.half
    with reserved([("TARGET", args.target)], inputs):
        size = export_checkpoint(args.source, args.target, *options)
    put(f"{args.target}: {size / 1e6:.1f} MB\n")
