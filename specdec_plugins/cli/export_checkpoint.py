"""Write a checkpoint to ship: weights without optimizer state and paths.

    specdec-export runs/drafter/checkpoint_best.pt drafter.pt -s en -t de
    specdec-export opus-mt-en-de fairseq/verifier.pt
    specdec-export verifier.pt FOLDER --to transformers

All commands that take a checkpoint accept the new file. A folder of transformers becomes a
checkpoint of fairseq, with dictionaries and a SentencePiece model beside it. With --to transformers
a verifier becomes such a folder, if its network is an M2M-100's.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from specdec_plugins.checkpoints.config import AS_TRANSFORMER
from specdec_plugins.checkpoints.export import Training, export_checkpoint
from specdec_plugins.checkpoints.pair import load_verifier
from specdec_plugins.files.command import Parser, command, put
from specdec_plugins.files.errors import CheckpointError, InferenceError
from specdec_plugins.files.output import reserved, write_json, write_whole
from specdec_plugins.inference import Settings
from specdec_plugins.inference.flags import settings_of_verifier
from specdec_plugins.inference.loading import build_task
from specdec_plugins.inference.pair_folder import SEGMENTATION, copy_segmentation
from specdec_plugins.verifiers.export import write_dictionaries, write_folder
from specdec_plugins.verifiers.folder import CONFIG, is_folder


@command()
def main(argv: Sequence[str]) -> None:
    """Write the checkpoint."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add(
        "verifier",
        metavar="SOURCE",
        type=Path,
        help="a checkpoint of fairseq-train, or a transformers folder",
    )
    add("target", metavar="TARGET", help="the file to write")
    add("-s", "--source-lang", metavar="LANG", help="language to record")
    add("-t", "--target-lang", metavar="LANG", help="language to record")
    add("--dictionaries", metavar="DIR", type=Path, help="dictionaries of its training")
    add(
        "--draft-vocabulary",
        metavar="N",
        type=int,
        help="draft only the N most frequent tokens of --draft-text, which is faster, and leave "
        "rare tokens to the verifier (needs --dictionaries; train heads for the new file)",
    )
    add("--draft-text", metavar="FILE", help="segmented target text, ideally the verifier's")
    add("--as-transformer", action="store_true", help=AS_TRANSFORMER)
    add("--half", action="store_true", help="write float16 weights, which may change some outputs")
    add("--to", choices=["transformers"], help="write a folder of transformers")
    args = parser.parse_args(argv)
    if (args.draft_vocabulary is None) != (args.draft_text is None):
        raise ValueError("--draft-vocabulary N, --draft-text: give both, or neither")
    if args.to and args.draft_text:
        raise ValueError("--draft-vocabulary: a folder of transformers holds no drafter")
    inputs = [("SOURCE", str(args.verifier)), ("--draft-text", args.draft_text)]
    if args.to:
        os.makedirs(args.target, exist_ok=True)
        with reserved([("TARGET", os.path.join(args.target, CONFIG))], inputs):
            to_transformers(settings_of_verifier(args), Path(args.target), args.half)
        return
    os.makedirs(Path(args.target).parent, exist_ok=True)
    dictionaries = args.dictionaries and str(args.dictionaries)
    if dictionaries:
        inputs += [("--dictionaries", str(x)) for x in args.dictionaries.glob("dict.*.txt")]
    languages = args.source_lang, args.target_lang
    draft_from = None
    if args.draft_text:
        draft_from = (args.draft_vocabulary, args.draft_text)
    with reserved([("TARGET", args.target)], inputs):
        if is_folder(args.verifier):
            task = build_task(settings_of_verifier(args)).cfg
            languages = task.source_lang, task.target_lang
            write_texts(args.verifier, languages, Path(args.target))
        size = export_checkpoint(
            str(args.verifier),
            args.target,
            Training(languages, dictionaries),
            draft_from,
            args.as_transformer,
            args.half,
        )
    put(f"{args.target}: {size / 1e6:.1f} MB\n")


def write_texts(folder: Path, languages: Sequence[str], target: Path) -> None:
    """Write the dictionaries and the segmentation of a folder of transformers beside its checkpoint
    ``target``; over other files only where the checkpoint replaces another.

    Raises:
        InferenceError: they are another model's.
    """
    with tempfile.TemporaryDirectory() as made:
        write_dictionaries(folder, Path(made), languages)
        copy_segmentation(folder, Path(made))
        contents = {path.name: path.read_bytes() for path in Path(made).iterdir()}
    for name, content in contents.items():
        path = target.with_name(name)
        if path.exists() and not target.exists() and path.read_bytes() != content:
            raise InferenceError(
                f"TARGET {target}: {name} beside it is another model's; name a new folder"
            )
    for name, content in contents.items():
        write_whole(target.with_name(name), [content])


def to_transformers(settings: Settings, folder: Path, half: bool) -> None:
    """Write a verifier as a folder of transformers, with the files by which we segment its text."""
    task = build_task(settings)
    verifier = load_verifier(str(settings.ar_path), task)
    if task.multilingual is not None:
        raise CheckpointError("--to transformers: the model has tokens of languages, or BOS")
    if half:
        verifier = verifier.half()
    write_folder(
        verifier, task.target_dictionary, (task.cfg.source_lang, task.cfg.target_lang), folder
    )
    if not copy_segmentation(Path(settings.data), folder):
        write_json(folder / SEGMENTATION, {})  # text that is segmented already
    put(f"{folder}: an M2M-100 of one direction\n")
