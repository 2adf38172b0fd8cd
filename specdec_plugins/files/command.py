"""Commands: their parsers, their streams, and the wrapper that turns errors into one line."""

from __future__ import annotations

import argparse
import io
import logging
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import NoReturn

from specdec_plugins.files.errors import SpecdecError

#: Messages of PyTorch, CUDA and ONNX Runtime.
OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|bad_alloc|bad allocation|Failed to allocate"
)


class Parser(argparse.ArgumentParser):
    """A command's parser, which shows its module's text. Errors are one line."""

    def __init__(self, text: str | None, usage: str | None = None) -> None:
        super().__init__(
            usage=usage,
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 and one line."""
        self.exit(2, f"{self.prog}: {' '.join(message.split())}\n")


def positive(text: str) -> int:
    """Return a whole number of at least 1, as the type of a flag."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be at least 1")
    return value


def program() -> str:
    """Return the name of the command as it was called."""
    return Path(sys.argv[0]).name


def command(
    interrupted: str = "interrupted", failed: int | None = None, logs: bool = True
) -> Callable[[Callable[..., int | None]], Callable[..., int]]:
    """Make a command of its main function; without arguments it takes the program's.

    Errors that a user can mend end in one line, and the status ``failed``, by default 2 for a
    ``ValueError`` and 1 otherwise; ``LOGLEVEL=DEBUG`` shows the traceback before it. SIGTERM and
    SIGHUP clean up as Ctrl-C does; the status is then 128 and the signal's number. Without ``logs``
    the terminal is left to fairseq's trainer.
    """

    def decorate(main: Callable[..., int | None]) -> Callable[..., int]:
        @wraps(main)
        def run(argv: Sequence[str] | None = None) -> int:
            with suppress(ValueError):  # in a thread
                _raise_on_signals()
            try:
                if logs:
                    _prepare_terminal()
                arguments = sys.argv[1:] if argv is None else list(argv)
                return main(arguments) or 0
            except BrokenPipeError:
                return 0
            except KeyboardInterrupt as stop:
                status = 128 + (stop.args or (signal.SIGINT,))[0]
                message = interrupted
            except (SpecdecError, OSError, ValueError) as error:
                file = getattr(error, "filename", None)
                if not (logs or file or isinstance(error, SpecdecError)):
                    raise  # from fairseq: its traceback is of use
                status = failed or 1 + isinstance(error, ValueError)
                message = str(error)
                if file:
                    message = f"{file}: {getattr(error, 'strerror', None) or error}"
                logging.getLogger(__name__).debug("traceback:", exc_info=True)
            except (MemoryError, RuntimeError) as error:
                if not (isinstance(error, MemoryError) or OUT_OF_MEMORY.search(str(error))):
                    raise
                status = failed or 1
                message = "out of memory; give a smaller --batch, or shorter lines"
            tell(f"{program()}: {' '.join(message.split())}")
            return status

        return run

    return decorate


def _raise_on_signals() -> None:
    """Let SIGTERM, SIGHUP and Ctrl-C raise KeyboardInterrupt, unless the user has them ignored."""
    # Windows has no SIGHUP.
    for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _stop)
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def end_on_interrupt() -> None:
    """Let Ctrl-C end one of our commands at once until its main function begins.

    A library that is being imported may swallow KeyboardInterrupt, or take it for a fault.
    """
    if program().startswith("specdec-"):
        with suppress(ValueError):  # in a thread
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.signal(signal.SIGINT, _end)


def _end(number: int, _frame: object) -> NoReturn:
    tell(f"{program()}: interrupted")
    os._exit(128 + number)


def _stop(number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt(number)


def _prepare_terminal() -> None:
    """Log under the command's name, and read and print UTF-8 in every locale."""
    if sys.stderr is None:  # closed
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (to the very end)
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
    level = os.environ.get("LOGLEVEL", "WARNING").upper()
    logging.basicConfig(level=level, format=f"{program()}: %(message)s")
    if not sys.warnoptions:
        warnings.simplefilter("ignore")


def tell(text: str) -> None:
    """Write a line to standard error, if anybody can read it."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def put(text: str) -> None:
    """Write to standard output, at once."""
    try:
        print(text, end="", flush=True)
    except OSError:  # Python must not try again when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise
