"""What all commands do with the terminal: where they log, what they hide, how text is encoded."""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from collections.abc import Callable
from functools import wraps
from pathlib import Path

from specdec_plugins.inference.streams import open_standard_streams, tell

Main = Callable[..., int]

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def program(script: str) -> str:
    """A command's name in messages: that of its script, unless it was called by its own."""
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


def ends_quietly(prog: str) -> Callable[[Main], Main]:
    """For a command's main function: what is interrupted ends by one line and with status 130, and
    where nobody reads the output any more it just ends."""

    def decorate(main: Main) -> Main:
        @wraps(main)
        def run(*arguments: object) -> int:
            try:
                return main(*arguments)
            except BrokenPipeError:
                return 0
            except KeyboardInterrupt:
                tell(f"{prog}: interrupted")
                return 130

        return run

    return decorate


def log_level(prog: str) -> str:
    """What ``LOGLEVEL`` says; ends the program with status 2 if there is no such level."""
    level = os.environ.get("LOGLEVEL") or "WARNING"
    if level.upper() not in LEVELS:
        print(f"{prog}: LOGLEVEL={level}: must be one of {', '.join(LEVELS)}", file=sys.stderr)
        sys.exit(2)
    return level.upper()
