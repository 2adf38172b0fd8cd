"""The process of one system: it loads, then decodes whenever it is asked to.

Nothing is imported here that a system may do without: of CTranslate2's process torch is no part.
"""

from __future__ import annotations

import logging
import os
import resource
import sys
import traceback
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from specdec_plugins.files.output import JsonObject

STATUS = Path("/proc/self/status")
Tokens = list[str]
"""A sentence: symbols of its language's dictionary, without EOS."""


@dataclass
class Decoded:
    """What a system made of the batches that it was asked for; lists are in the order of them."""

    seconds: list[float] = field(default_factory=list)
    """Seconds of decoding each batch, and nothing else."""
    outputs: list[str] | list[Tokens] = field(default_factory=list)
    """The translation of each sentence: text, or symbols where a system knows nothing else."""
    columns: dict[str, list[Any]] = field(default_factory=dict)
    """The values of each sentence, by the names of :class:`SentenceColumns`."""
    figures: JsonObject = field(default_factory=dict)
    """Fields of a :class:`Run` that this kind of system knows."""
    memory: int | None = None
    """Bytes: see :class:`Run`."""


class Job(Protocol):
    """A system, and the batches that it is to decode; sent to its process before it is loaded."""

    def load(self) -> None: ...

    def decode(self, batches: int, seed: int | None = None) -> Decoded:
        """Decode so many batches, the first ones.

        Args:
            seed: what is drawn depends on it.
        """
        ...


@dataclass(frozen=True)
class Failure:
    """Why a process ends."""

    message: str
    traceback: str


def main() -> None:
    """Serve at the end of a pipe whose descriptor is the first argument, until it is closed."""
    # Before fairseq does so, which logs all that it imports.
    level = os.environ.get("LOGLEVEL", "WARNING").upper()
    logging.basicConfig(level=level, format="%(message)s")
    connection = Connection(int(sys.argv[1]))
    try:
        serve(connection)
    except (EOFError, BrokenPipeError):
        pass  # nobody asks any more
    except Exception as error:  # whatever it is, the other end has to know
        connection.send(Failure(str(error) or type(error).__name__, traceback.format_exc()))


def serve(connection: Connection) -> None:
    """Load the job that comes first, then decode as each message, the arguments, says.

    Raises:
        EOFError: the other end was closed.
    """
    job: Job = connection.recv()
    job.load()
    connection.send(Decoded())
    while True:
        decoded = job.decode(*connection.recv())
        decoded.memory = peak_memory()
        connection.send(decoded)


def peak_memory() -> int:
    """Return the most bytes of memory that this process has had."""
    try:
        status = dict(line.split(":", 1) for line in STATUS.read_text("utf-8").splitlines())
        return int(status["VmHWM"].split()[0]) * 1024
    except (OSError, KeyError):
        # On Linux this one begins with that of the process that started this one.
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
