"""Write a checkpoint for shipping: weights without optimizer state and paths.

    specdec-export runs/drafter/checkpoint_best.pt drafter.pt -s en -t de

All commands that take a checkpoint take what is written.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from specdec_plugins.checkpoints.config import AS_TRANSFORMER
from specdec_plugins.checkpoints.export import DraftFrom, export_checkpoint
from specdec_plugins.files.command import Parser, command, program, put
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.lock import reserved

PROG = program("export_checkpoint.py")


@command(PROG)
def main(argv: Sequence[str]) -> None:
    parser = Parser(PROG, __doc__)
    parser.add_argument("source", metavar="SOURCE", help="a checkpoint of fairseq-train")
    parser.add_argument("target", metavar="TARGET", help="the file to write")
    parser.add_argument(
        "-s", "--source-lang", metavar="LANG", help="language to note in the checkpoint"
    )
    parser.add_argument(
        "-t", "--target-lang", metavar="LANG", help="language to note in the checkpoint"
    )
    parser.add_argument(
        "--dictionaries", metavar="DIR", help="folder of the dictionaries that it was trained with"
    )
    parser.add_argument(
        "--draft-vocabulary",
        type=_count,
        metavar="N",
        help="of a drafter: draft only from the N tokens that --draft-text has most often, which "
        "makes drafts quicker, and a rare token the verifier's own (needs --dictionaries; train "
        "heads for what is exported); or all: draft from all tokens again",
    )
    parser.add_argument(
        "--draft-text",
        metavar="FILE",
        help="segmented text of the target language, best what the verifier wrote for training",
    )
    parser.add_argument(
        "--as-transformer",
        action="store_true",
        help=AS_TRANSFORMER,
    )
    parser.add_argument(
        "--half", action="store_true", help="write float16 weights, which may change some outputs"
    )
    args = parser.parse_args(argv)
    inputs = [("SOURCE", args.source), ("--draft-text", args.draft_text)]
    folder = Path(args.dictionaries or os.devnull)
    inputs += [("--dictionaries", str(path)) for path in folder.glob("dict.*.txt")]
    languages = args.source_lang, args.target_lang
    draft_from = _draft_from(args.draft_vocabulary, args.draft_text)
    about = languages, args.dictionaries, draft_from, args.as_transformer, args.half
    with reserved([("TARGET", args.target)], inputs):
        size = export_checkpoint(args.source, args.target, *about)
    put(f"{args.target}: {size / 1e6:.1f} MB\n")


def _count(value: str) -> int | Literal["all"]:
    """Return what argparse makes of ``--draft-vocabulary``."""
    try:
        return "all" if value == "all" else int(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{value}: must be a number of tokens, or all") from None


def _draft_from(count: int | Literal["all"] | None, text: str | None) -> DraftFrom | None:
    if count == "all":
        if text is not None:
            raise InferenceError(f"--draft-text {text}: --draft-vocabulary all reads no text")
        return count
    if count is None and text is None:
        return None
    if count is None or text is None:
        raise InferenceError("--draft-vocabulary, --draft-text: give both, or neither")
    return count, text
