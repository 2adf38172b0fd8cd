#!/usr/bin/env python3
"""Translate text speculatively, line by line.

    scripts/inference.py DATA_DIR --path drafter.pt --AR-path verifier.pt \\
        --input-path FILE --output-path FILE

DATA_DIR holds dict.{source,target}.txt and may hold the BPE `codes`. Text is taken as it is, in
tokens with `@@ ` markers, and put out in tokens without them; with `--tokenizer moses --bpe
subword_nmt` it is ordinary text on both sides.

An empty line gives an empty line; a line longer than the encoder has positions for is cut, with a
warning; unknown words become <unk>; invalid UTF-8 ends the run after all lines before it. Every
line is written as soon as it is known, in input order: a run that was stopped leaves complete
lines, and goes on with --resume. At batch 1 every line is answered at once; at a larger batch,
64 batches of lines are read ahead and sorted by length, unless the input is typed.

Times are those of decoding alone: no loading, no text work.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from itertools import chain, islice
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
if (ROOT / "specdec_plugins" / "__init__.py").is_file():
    sys.path.insert(0, str(ROOT))
if __name__ == "__main__":
    # Before the imports, since fairseq's modules talk while they are imported.
    logging.basicConfig(
        stream=sys.stderr,
        level=os.environ.get("LOGLEVEL", "WARNING").upper(),
        format="inference.py: %(message)s",
    )
    if not sys.warnoptions:
        warnings.simplefilter("ignore")

try:
    import torch
    from fairseq import options, utils
    from fairseq.dataclass.configs import CommonConfig
    from fairseq.dataclass.utils import gen_parser_from_dataclass
    from fairseq.registry import REGISTRIES
    from tqdm import tqdm

    from specdec_plugins.checkpoints import CheckpointError
    from specdec_plugins.decoding.acceptance import AcceptanceRule
    from specdec_plugins.decoding.controllers import ControllerOptions
    from specdec_plugins.decoding.limits import GenerationLimits
    from specdec_plugins.inference import (
        InferenceError,
        Settings,
        Translation,
        load_translator,
    )
    from specdec_plugins.inference.output import OutputLines, check_apart, check_writable
    from specdec_plugins.inference.report import format_report, full_report, write_json
    from specdec_plugins.inference.settings import STRATEGIES
    from specdec_plugins.inference.text import STANDARD, InputLines
    from specdec_plugins.inference.trace_file import open_trace
    from specdec_plugins.tasks.controller_config import ControllerConfig
except ImportError as error:
    sys.exit(f"inference.py: {error}; install the package and what it needs: pip install {ROOT}")
except KeyboardInterrupt:
    sys.exit(130)

logger = logging.getLogger(__name__)

ENCODERS = ("tokenizer", "bpe")
LIMITS = ("max_len_a", "max_len_b", "min_len", "unkpen", "temperature", "lenpen", "unnormalized")
SEARCH = (
    "sampling",
    "sampling_topk",
    "sampling_topp",
    "diverse_beam_groups",
    "diverse_beam_strength",
    "diversity_rate",
    "match_source_len",
    "no_repeat_ngram_size",
)
# Of fairseq's other flags a warning says that they do nothing. Of those that would change the
# output and cannot be honoured, GenerationLimits says so.
USED = (*ENCODERS, *LIMITS, "nbest", "seed", "cpu", "fp16", "bf16", "quiet", "task", "user_dir")


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"inference.py: {' '.join(message.split())}\n")


def add_own_flags(parser: argparse.ArgumentParser) -> set[str]:
    """Add our own flags; returns their names in the namespace."""
    group = parser.add_argument_group("speculative decoding")

    def add(*flags: str, **options: Any) -> None:
        group.add_argument(*flags, **options)

    add("data", metavar="DATA_DIR", help="folder of dict.{source,target}.txt, and of codes")
    add("--path", metavar="FILE", help="drafter checkpoint; not needed for AR and fairseq")
    add("--AR-path", metavar="FILE", help="verifier checkpoint")
    add("--input-path", metavar="FILE", default="-", help="text, one sentence a line; -: stdin")
    add("--output-path", metavar="FILE", default="-", help="a translation a line; -: stdout")
    add(
        "--strategy",
        choices=STRATEGIES,
        default="specdec",
        help="specdec (default); AR: greedy, cached, without a drafter; fairseq: stock beam "
        "search; drafter: the drafter alone, unverified",
    )
    add("--batch", metavar="N", type=int, default=1, help="sentences at a time (1)")
    add("--beam", metavar="N", type=int, default=5, help="for --strategy fairseq (5)")
    add("--block-size", metavar="K", type=int, help="slots drafted in a pass (what was trained)")
    add("--beta", metavar="B", type=int, default=1, help="accept the verifier's B best (1: strict)")
    add("--tau", metavar="T", type=float, default=0.0, help="and within T nats of its best (0)")
    gen_parser_from_dataclass(group, ControllerConfig())
    add("-s", "--source-lang", metavar="LANG", help="default: the checkpoint's")
    add("-t", "--target-lang", metavar="LANG", help="default: the checkpoint's")
    add("--keep-bpe", action="store_true", help="put out segmented text as it is")
    add("--resume", action="store_true", help="go on after the lines that the output has")
    add("--stats-json", metavar="FILE", help="write statistics, settings and versions there")
    add(
        "--trace", metavar="FILE", help="write what every step did: a JSON line a sentence (slower)"
    )
    add("--warmup", metavar="N", type=int, default=0, help="decode N lines before, untimed (0)")
    add("--fp64", action="store_true", help="float64, to check exactness")
    add("--no-progress-bar", action="store_true", help="no progress bar on a terminal")
    return {action.dest for action in group._group_actions}


def build_parser() -> tuple[Parser, set[str]]:
    """Our flags, whose names are returned too; then fairseq's, for generation and in general."""
    parser = Parser(
        prog="inference.py",
        usage="inference.py DATA_DIR --path FILE --AR-path FILE [flag ...]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    own = add_own_flags(parser)
    options.add_generation_args(parser)
    for name in ENCODERS:
        group = parser.add_argument_group(name)
        group.add_argument(f"--{name}", choices=list(REGISTRIES[name]["registry"]))
        for config in REGISTRIES[name]["dataclass_registry"].values():
            if config is not None:
                gen_parser_from_dataclass(group, config())
    group = parser.add_argument_group("fairseq")
    group.add_argument("--task", metavar="TASK", help="any: the task is always our own")
    gen_parser_from_dataclass(group, CommonConfig())
    options.add_dataset_args(parser, gen=True)
    return parser, own


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line, and warn of flags that do nothing here."""
    import_user_dir(argv)
    parser, own = build_parser()
    args = parser.parse_args(argv)
    args.encoder_options = {}
    for name in ENCODERS:
        config = REGISTRIES[name]["dataclass_registry"].get(getattr(args, name))
        for key in vars(config()) if config is not None else ():
            if hasattr(args, key):
                args.encoder_options[key] = getattr(args, key)
    used = {*own, *USED, *args.encoder_options, *(SEARCH if args.strategy == "fairseq" else ())}
    if args.post_process not in (None, "subword_nmt"):
        used.add("post_process")
    flags = (token.split("=")[0] for token in argv if token.startswith("-"))
    actions = parser._option_string_actions
    unused = [flag for flag in flags if flag in actions and actions[flag].dest not in used]
    if unused:
        logger.warning("these flags do nothing here: %s", " ".join(dict.fromkeys(unused)))
    return args


def import_user_dir(argv: Sequence[str]) -> None:
    """Import what ``--user-dir`` names, unless it is this plugin."""
    parser = Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--user-dir")
    args, _ = parser.parse_known_args(argv)
    if args.user_dir and Path(args.user_dir).resolve().name != "specdec_plugins":
        try:
            utils.import_user_module(args)
        except Exception as error:  # whatever the user's modules raise
            reason = str(error) or type(error).__name__
            parser.error(f"--user-dir {args.user_dir}: cannot be imported ({reason})")


def make_settings(args: argparse.Namespace) -> Settings:
    """
    Raises:
        ValueError: a value that cannot be, naming its flag.
    """
    dtypes = {"fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}
    given = [flag for flag in dtypes if getattr(args, flag)]
    if len(given) > 1:
        raise ValueError(f"--{given[0]} and --{given[1]}: give one of them")
    if args.warmup < 0:
        raise ValueError(f"--warmup {args.warmup}: must be 0 or more")
    if args.nbest != 1:
        raise ValueError(f"--nbest {args.nbest}: one translation is put out a line")
    stock = args.strategy == "fairseq"
    limits = {name: getattr(args, name) for name in LIMITS}
    return Settings(
        data=args.data,
        ar_path=args.AR_path,
        path=args.path,
        strategy=args.strategy,
        batch=args.batch,
        beam=args.beam,
        block_size=args.block_size,
        rule=AcceptanceRule(args.beta, args.tau),
        controller=ControllerOptions.from_config(args),
        limits=GenerationLimits.from_config(argparse.Namespace(**limits) if stock else args),
        source_lang=args.source_lang,
        target_lang=args.target_lang,
        device="cuda" if torch.cuda.is_available() and not args.cpu else "cpu",
        dtype=dtypes[given[0]] if given else "float32",
        tokenizer=args.tokenizer,
        bpe=args.bpe,
        encoder_options=args.encoder_options,
        post_process=args.post_process,
        keep_bpe=args.keep_bpe,
        search_options={name: getattr(args, name) for name in SEARCH} if stock else {},
        trace=bool(args.trace),
    )


def translate(args: argparse.Namespace, settings: Settings) -> None:
    """Translate the input to the output, and report.

    Raises:
        CheckpointError, InferenceError: what stopped it.
        ValueError: a setting that does not fit the models.
        BrokenPipeError: nobody reads the output.
    """
    output = OutputLines(args.output_path, args.resume)
    if args.stats_json:
        check_writable(args.stats_json, "--stats-json")
        check_apart(args.stats_json, "--stats-json", args.trace, "trace")
    with InputLines.open(args.input_path) as lines:
        output.check_input(lines)
        trace = open_trace(args.trace, output, lines, args.resume) if args.trace else None
        translator = load_translator(settings)
        first = list(islice(lines, args.warmup))
        translator.warm_up(first)
        window = 1 if lines.typed else None
        results = translator.translate(chain(first, lines), window)
        with output, trace or nullcontext():
            for result in progress(results, args, lines, output.done):
                if trace is not None:
                    trace.write(result.trace.to_json())
                output.write(result.text)
        lines.check()
    report = full_report(translator, warmup=args.warmup)
    if not args.quiet:
        print(format_report(report), file=sys.stderr)
    if args.stats_json:
        write_json(report, args.stats_json)


def progress(
    results: Iterable[Translation], args: argparse.Namespace, lines: InputLines, done: int
) -> Iterable[Translation]:
    """A progress bar, where somebody sees it and it is in nobody's way."""
    hidden = args.no_progress_bar or lines.typed or not sys.stderr.isatty()
    if hidden or (args.output_path == STANDARD and sys.stdout.isatty()):
        return results
    return tqdm(results, unit="line", initial=done, total=lines.total())


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, 1 for what the run met with, 2 for the command line."""
    args = parse(sys.argv[1:] if argv is None else argv)
    try:
        utils.set_torch_seed(args.seed)
        translate(args, make_settings(args))
    except BrokenPipeError:
        return 0
    except KeyboardInterrupt:
        return fail(130, "interrupted; the lines written so far are complete (see --resume)")
    except torch.cuda.OutOfMemoryError:
        return fail(1, f"--batch {args.batch}: the GPU's memory does not suffice; give fewer")
    except (CheckpointError, InferenceError) as error:
        return fail(1, str(error))
    except ValueError as error:
        return fail(2, str(error))
    return 0


def fail(status: int, message: str) -> int:
    """Say in one line why the run ends; with LOGLEVEL=DEBUG, also where."""
    logger.debug("traceback:", exc_info=True)
    print(f"inference.py: {' '.join(message.split())}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
