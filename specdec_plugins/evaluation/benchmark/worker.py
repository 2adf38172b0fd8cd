"""The process of one system: it loads, then decodes whenever it is asked to.

Nothing is imported here that a system may do without: of CTranslate2's process torch is no part.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

from specdec_plugins.evaluation.memory import peak_memory

Tokens = list[str]
"""A sentence: symbols of its language's dictionary, without EOS."""
Batches = Sequence[Sequence[Tokens]]


@dataclass(frozen=True)
class Decoded:
    """What a system made of the batches that it was asked for."""

    seconds: float
    """Of decoding alone."""
    outputs: list[Tokens]
    """Batch by batch."""
    figures: dict[str, Any]
    """Of those that draft, the fields of a measurement that others do not have."""


class Decoder(Protocol):
    """A loaded system."""

    def decode(self, batches: int) -> Decoded:
        """Decode so many batches, the first ones."""
        ...


class Job(Protocol):
    """What a system is made from; sent to its process."""

    def load(self) -> Decoder: ...


@dataclass(frozen=True)
class Answer:
    """What a process says when it has loaded (``decoded`` is None then), and has decoded."""

    decoded: Decoded | None
    peak_memory: int
    """Bytes: the most that the process has had in memory so far."""


@dataclass(frozen=True)
class Failure:
    """Why a process ends."""

    message: str
    traceback: str


def main() -> None:
    """Serve at the end of a pipe whose descriptor is the first argument, until it is closed."""
    connection = Connection(int(sys.argv[1]))
    try:
        serve(connection)
    except (EOFError, BrokenPipeError):
        pass  # nobody asks any more
    except Exception as error:  # whatever it is, the other end has to know
        connection.send(Failure(str(error) or type(error).__name__, traceback.format_exc()))


def serve(connection: Connection) -> None:
    """Load the job that comes first, then decode as many batches as each message says.

    Raises:
        EOFError: the other end was closed.
    """
    job: Job = connection.recv()
    decoder = job.load()
    connection.send(Answer(None, peak_memory()))
    while True:
        decoded = decoder.decode(connection.recv())
        connection.send(Answer(decoded, peak_memory()))
