"""Translate a large file, or a folder of files, with a pool of workers.

    specdec-translate-corpus PAIR --input-path FILE_OR_FOLDER --output-path FOLDER --workers N

The output folder gets a file of the same name for every input file, line for line. With --drafts
FOLDER, files of the same names there are the drafts. Repeat the command to continue a stopped
run. PAIR and the other flags are those of specdec-translate. Hidden and special files are skipped
and named. Needs Ray: pip install 'specdec-plugins[ray]'; RAY_ADDRESS names a cluster.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from specdec_plugins.files.command import command, positive, tell
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.output import differing, work_folder
from specdec_plugins.inference.flags import TranslationParser, make_settings
from specdec_plugins.inference.settings import PLAIN
from specdec_plugins.inference.systems import AR, parse_system
from specdec_plugins.inference.tuned_modes import as_tuned
from specdec_plugins.jobs import corpus, progress
from specdec_plugins.jobs.loading import load

logger = logging.getLogger(__name__)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = TranslationParser(__doc__, argv)
    add = parser.group.add_argument
    add("--input-path", metavar="PATH", type=Path, required=True, help="a text file, or a folder")
    add("--output-path", metavar="FOLDER", type=Path, required=True, help="the translations")
    add("--workers", metavar="N", type=positive, default=1, help="processes, one a GPU if any (1)")
    add("--threads", metavar="N", type=positive, default=1, help="CPU threads of each (1)")
    add("--shard-lines", metavar="N", type=positive, default=1000, help="lines per shard (1000)")
    return parser.parse(argv)


@command("interrupted; what is done is kept, the same command goes on")
def main(argv: Sequence[str]) -> None:
    """Translate the rest of the corpus, and put it together."""
    args = parse(argv)
    try:
        from specdec_plugins.jobs.pool import translate_shards
    except ImportError as error:
        raise InferenceError(f"{error}; pip install 'specdec-plugins[ray]' installs it") from error
    settings = make_settings(args)
    files, passed_over = corpus.find_files(args.input_path)
    if args.output_path.resolve().is_relative_to(args.input_path.resolve()):
        raise InferenceError(f"--output-path {args.output_path}: is in the input; name another")
    if passed_over:
        logger.warning("passed over: %s", ", ".join(passed_over))
    settings = as_tuned(settings, args.threads)
    # A fault of the models ends the job here, once. Drafts of a copy or a text need no drafter.
    alone = settings.kind is not None and not settings.has_drafter
    plain = parse_system(AR, settings) if alone else settings
    load(replace(plain, **PLAIN), args.no_progress_bar)
    shards = corpus.read_corpus(files, args.output_path, args.shard_lines, settings.drafts_path)
    about = corpus.describe_job(files, settings, args.seed, args.shard_lines)
    with work_folder(args.output_path, args.output_path / corpus.FOLDER / corpus.JOB, about):
        missing = corpus.pending(shards, args.output_path)
        total = sum(map(corpus.count_lines, shards.values()))
        left = corpus.count_lines(missing)
        before = total - left
        with progress(args.no_progress_bar, total=total, initial=before, unit="line") as bar:
            for count in translate_shards(missing, settings, args.seed, args.workers, args.threads):
                bar.update(count)
        if other := differing(
            about, corpus.describe_job(files, settings, args.seed, args.shard_lines)
        ):
            raise InferenceError(
                f"{other}: was replaced while the corpus was translated; {corpus.REMEDY}"
            )
        corpus.finish(shards, args.output_path)
    if not args.quiet:
        tell(f"{left} lines of {len(shards)} files translated, {before} before")
