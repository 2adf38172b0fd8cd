"""Translate text speculatively, line by line.

    specdec-translate PAIR --input-path FILE --output-path FILE
    specdec-translate DATA_DIR --path drafter.pt --AR-path verifier.pt < FILE

Give ordinary text if PAIR or DATA_DIR has codes, a SentencePiece model or segmentation.json, or
with --tokenizer and --bpe. Otherwise, or with --segmented, give tokens with `@@ ` markers; the
output has none. Lines are written in input order as soon as they are known: a stopped run leaves
complete lines, and --resume continues it. Times cover decoding alone.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from specdec_plugins.files.command import command, put, tell
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.lines import STANDARD, InputLines, OutputLines, check_drafts, check_open
from specdec_plugins.files.output import reserved, write_json, write_whole
from specdec_plugins.inference import Settings, Translation, Translator, load_translator
from specdec_plugins.inference.documents import FORMATS
from specdec_plugins.inference.flags import TranslationParser, make_settings
from specdec_plugins.inference.report import check_run, format_report, full_report
from specdec_plugins.inference.trace_page import open_trace
from specdec_plugins.inference.tuned_modes import as_tuned
from specdec_plugins.jobs import progress
from specdec_plugins.jobs.loading import load
from specdec_plugins.jobs.resume import Resume, describe_run, resume_path
from specdec_plugins.machine import choose_threads

logger = logging.getLogger(__name__)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = TranslationParser(__doc__, argv)
    add = parser.group.add_argument
    add("--input-path", metavar="FILE", default="-", help="text, one sentence a line; -: stdin")
    add(
        "--format",
        choices=("text", *FORMATS),
        default="text",
        help="of input and output (text: lines)",
    )
    add = parser.output.add_argument
    add("--output-path", metavar="FILE", default="-", help="one translation a line; -: stdout")
    add("--resume", action="store_true", help="continue after the finished lines")
    add("--stats", action="store_true", help="report all figures")
    add("--stats-json", metavar="FILE", help="write statistics, settings and versions")
    add("--trace", metavar="FILE", help="record every step: a JSON line a sentence (slower)")
    return parser.parse(argv)


@command("interrupted; the lines written so far are complete (see --resume)")
def main(argv: Sequence[str]) -> None:
    """Translate the input to the output, and report."""
    args = parse(argv)
    settings = replace(make_settings(args), trace=bool(args.trace))
    outputs = {
        "--output-path": args.output_path,
        "--trace": args.trace,
        "--stats-json": args.stats_json,
    }
    for flag in ("--trace", "--stats-json"):
        if outputs[flag] == STANDARD:
            raise InferenceError(f"{flag} -: cannot go to standard output; name a file")
    check_run(
        settings,
        [*outputs.items(), ("the file for --resume,", resume_path(args.output_path))],
        [("--input-path", args.input_path)],
    )
    choose_threads()
    settings = as_tuned(settings)
    with reserved(outputs.items()):
        if args.format == "text":
            _translate_lines(args, settings)
        else:
            _translate_document(args, settings)


def _translate_lines(args: argparse.Namespace, settings: Settings) -> None:
    """Translate a text line by line, or what an earlier run left of it."""
    drafts: AbstractContextManager[InputLines | None] = nullcontext()
    if settings.drafts_path:
        drafts = InputLines.open(os.path.abspath(settings.drafts_path))
    with InputLines.open(args.input_path) as lines, drafts as lines.drafts:
        output = OutputLines(args.output_path, args.resume)
        trace = open_trace(args.trace, output, args.resume) if args.trace else None
        if lines.drafts is not None and lines.path is not None:
            check_drafts(str(lines.drafts.path), lines.path)
        about = describe_run(settings, args.seed, lines)
        resume = Resume(output, about, args.resume)
        translator = load(settings, args.no_progress_bar)
        if describe_run(settings, args.seed, lines) != about:
            raise InferenceError("a model or the input was replaced while it was read; run again")

        window = 1 if lines.typed else settings.window
        if not resume.skip(lines, window):
            logger.warning("%s is complete; nothing to do", args.output_path)
            _report(args, translator, output.done, works=False)
            return
        results = warned(translator.translate(lines, window, seed=args.seed), output.done)
        if lines.typed:
            tell("type sentences, one a line; Ctrl-D ends")
        hidden = args.no_progress_bar or lines.typed
        hidden |= args.output_path == STANDARD and sys.stdout.isatty()
        try:
            with progress(
                hidden, iterable=results, initial=output.done, total=lines.total(), unit="line"
            ) as bar:
                resume.write(bar, trace)
        except BrokenPipeError as error:
            if not (args.trace or args.stats_json):
                raise
            raise InferenceError(
                "standard output: its reader left, other outputs are cut off"
            ) from error
        remedy = ""
        if output.resumable:
            remedy = "; lines before are kept, go on with --resume"
        lines.check(remedy)
        _report(args, translator, output.done, works=True)
        resume.finish()


def _report(args: argparse.Namespace, translator: Translator, done: int, works: bool) -> None:
    """Print the figures of a run that began after ``done`` lines, and write them; if it had nothing
    to do, those of the run that did the work stay."""
    report = full_report(translator, done, seed=args.seed)
    if args.stats and not args.quiet:
        tell(format_report(report))
    elif not args.quiet:
        tell(str(translator.statistics))
    if args.stats_json and (works or not os.path.exists(args.stats_json)):
        write_json(Path(args.stats_json), report)


def _translate_document(args: argparse.Namespace, settings: Settings) -> None:
    """Translate the texts of a whole file, of which all else stays."""
    of_runs = {"--resume": args.resume, "--stats": args.stats, "--stats-json": args.stats_json}
    for flag in [*(flag for flag, value in of_runs.items() if value), *settings.flags_of_lines()]:
        raise ValueError(f"{flag}: does not work with --format {args.format}")
    check_open(args.output_path)
    name = "standard input" if args.input_path == STANDARD else args.input_path
    with InputLines.open(args.input_path) as source:
        data = source.read()
    try:
        document = FORMATS[args.format](data.decode())
    except UnicodeDecodeError as error:
        raise InferenceError(f"{name}: is not UTF-8; convert it") from error
    except InferenceError as error:
        raise InferenceError(f"{name}: {error}") from error
    with progress(args.no_progress_bar, f"translating {name}"):
        translator = load_translator(settings)
        results = translator.translate(document.sentences, seed=args.seed)
        output = document.joined([result.line for result in warned(results, 0)])
    if args.output_path == STANDARD:
        put(output)
    else:
        write_whole(Path(args.output_path), [output.encode()])
    if not args.quiet:
        tell(str(translator.statistics))


def warned(results: Iterable[Translation], before: int) -> Iterator[Translation]:
    """Yield translations, and warn of the first that ran into the length limit."""
    fault = "line %d: its output ran into the length limit (--max-len-a, --max-len-b)"
    for number, result in enumerate(results, before + 1):
        if result.limited and fault:
            logger.warning(fault, number)
            fault = ""
        yield result


if __name__ == "__main__":
    sys.exit(main())
