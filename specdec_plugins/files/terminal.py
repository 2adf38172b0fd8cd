"""What all commands do with the terminal: where they log, what they hide, how text is encoded."""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from types import TracebackType

import torch

from specdec_plugins.files.errors import SpecdecError
from specdec_plugins.files.streams import open_standard_streams, tell

logger = logging.getLogger(__name__)

Main = Callable[[list[str]], int | None]
"""Takes the arguments of a command line; returns the exit status, None for 0."""
Command = Callable[..., int]
"""The same for whoever calls it without arguments: they are then the program's."""

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def program(script: str) -> str:
    """Return a command's name in messages: that of its script, unless it was called by its own."""
    called = Path(sys.argv[0]).name
    return called if called.startswith("specdec-") else script


def prepare_terminal(prog: str) -> None:
    """Log to standard error under the command's name, from ``LOGLEVEL`` on (by default WARNING).

    Text that is read or printed is UTF-8 in every locale. Warnings of other packages are hidden
    unless Python is asked for them (``-W``, ``PYTHONWARNINGS``).

    Exits with status 2 if there is no such level.
    """
    open_standard_streams()
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
    level = log_level(prog)
    logging.basicConfig(stream=sys.stderr, level=level, format=f"{prog}: %(message)s")
    if not sys.warnoptions:
        warnings.simplefilter("ignore")


def command(
    prog: str,
    interrupted: str = "interrupted",
    failed: int | None = None,
    logs: bool = True,
) -> Callable[[Main], Command]:
    """Make a command of its main function: the terminal is prepared, and what stops it is told.

    What a user can mend ends in one line on standard error; with ``LOGLEVEL=DEBUG`` the traceback
    stands before it. Where nobody reads the output any more, the command just ends.

    Args:
        interrupted: what is said after an interruption, whose status is 130.
        failed: the status after an error; by default 2 for a ``ValueError``, which is about the
            command line, and else 1.
        logs: whether the terminal is prepared; fairseq's trainer sets up its own logging.
    """

    def decorate(main: Main) -> Command:
        @wraps(main)
        def run(argv: Sequence[str] | None = None) -> int:
            if logs:
                prepare_terminal(prog)
            else:
                log_level(prog)
            try:
                return main(list(sys.argv[1:] if argv is None else argv)) or 0
            except BrokenPipeError:
                return 0
            except KeyboardInterrupt:
                return _fail(prog, 130, interrupted)
            except torch.cuda.OutOfMemoryError:
                return _fail(prog, 1, "the GPU's memory does not suffice; give a smaller --batch")
            except (SpecdecError, OSError, ValueError) as error:
                if not logs and not isinstance(error, SpecdecError):
                    raise  # of fairseq: where it came from is of use
                of_usage = isinstance(error, ValueError)
                return _fail(prog, failed or (2 if of_usage else 1), str(error))

        return run

    return decorate


def end_in_a_line(prog: str) -> None:
    """Have one of fairseq's own commands end like ours where ours would: what a user can mend is
    told in one line, and a traceback with ``LOGLEVEL=DEBUG`` only."""
    if not prog.startswith("fairseq-") or log_level(prog) == "DEBUG":
        return
    before = sys.excepthook

    def tell_error(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if isinstance(error, SpecdecError):
            tell(f"{prog}: {' '.join(str(error).split())}")
        else:
            before(kind, error, trace)

    sys.excepthook = tell_error


def _fail(prog: str, status: int, message: str) -> int:
    logger.debug("traceback:", exc_info=True)
    tell(f"{prog}: {' '.join(message.split())}")
    return status


def log_level(prog: str) -> str:
    """Return what ``LOGLEVEL`` says; ends the program with status 2 if there is no such level."""
    level = os.environ.get("LOGLEVEL") or "WARNING"
    if level.upper() not in LEVELS:
        print(f"{prog}: LOGLEVEL={level}: must be one of {', '.join(LEVELS)}", file=sys.stderr)
        sys.exit(2)
    return level.upper()
