"""The standard streams of a program, whatever they are: closed, on a full disk, read by nobody."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from specdec_plugins.files.errors import InferenceError

OUTPUT, ERROR = 1, 2
"""Descriptors."""


def open_standard_streams() -> None:
    """See to it that there is a stderr, and that no file is opened in the place of a standard one.

    What a program finds closed stays closed to it: whatever is said there goes nowhere.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # which takes the first number that is free
    if sys.stderr is None or sys.stderr.closed:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (to the very end)


def tell(text: str) -> None:
    """Say something on stderr, if anybody can hear it."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        _give_up(sys.stderr)


def put(text: str) -> None:
    """Write to standard output, at once.

    Raises:
        BrokenPipeError: nobody reads it any more.
        InferenceError: it cannot be written to (no space, …).
    """
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        _give_up(sys.stdout)
        raise
    except OSError as error:
        _give_up(sys.stdout)
        raise InferenceError(
            f"standard output: cannot be written to ({error.strerror}); make room, or send it "
            "elsewhere"
        ) from error


def _give_up(stream: TextIO) -> None:
    """Let what could not be written go nowhere, or Python would try again when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
