"""The process of one system: it loads, then decodes whenever it is asked to.

Nothing is imported here that a system may do without: CTranslate2's process has no torch in it.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.lines import Line
from specdec_plugins.files.output import JsonObject
from specdec_plugins.machine import python_program

logger = logging.getLogger(__name__)

CODE = "from specdec_plugins.evaluation.worker import main; main()"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# Idle threads must not take the core of the system that is measured. But PyTorch's spin for some
# milliseconds from one operation to the next: to be woken by the kernel takes three times as long.
ENVIRONMENT = {
    "OMP_WAIT_POLICY": "passive",
    "KMP_BLOCKTIME": "5",
    "GOMP_SPINCOUNT": "1000000",
    "PYTHONWARNINGS": "ignore",
}
#: Symbols of a language's dictionary, without EOS.
Tokens = list[str]


@dataclass(frozen=True)
class Sentence:
    """A line with words, segmented."""

    line: Line
    tokens: Tokens
    #: The maximum number of target tokens, without EOS.
    longest: int


@dataclass(frozen=True)
class SentenceFigures:
    """Figures of one sentence."""

    #: Seconds of its batch: at batch 1, its own.
    seconds: float
    #: Tokens, EOS included, without forced ones.
    length: int
    #: Verifier passes; None for a system that does not speculate.
    calls: int | None = None
    #: Tokens that were verified and not accepted; None for a system that does not speculate.
    mismatched: int | None = None
    #: Tokens that each step verified; none for a system that does not speculate.
    verified: list[int] = field(default_factory=list)


@dataclass
class Decoded:
    """Results of decoding some batches."""

    #: Seconds of decoding, and nothing else.
    seconds: float = 0.0
    #: The translation of each sentence, in the order of the batches: text, or symbols where a
    #: system knows nothing else.
    outputs: list[str] | list[Tokens] = field(default_factory=list)
    #: Fields of a :class:`Run` that this kind of system knows.
    figures: JsonObject = field(default_factory=dict)
    #: Figures of each sentence, in the order of the batches; none if the system knows none.
    sentences: list[SentenceFigures] = field(default_factory=list)


def main() -> None:
    """Serve at the end of a pipe, whose descriptor is the first argument, until it is closed."""
    # Before fairseq does so, which logs all that it imports.
    logging.basicConfig(level=os.environ.get("LOGLEVEL", "WARNING").upper(), format="%(message)s")
    connection = Connection(int(sys.argv[1]))
    try:
        job = connection.recv()
        job.load()
        connection.send(Decoded())
        while True:
            decoded = job.decode(*connection.recv())
            decoded.figures.setdefault("memory", peak_memory())
            connection.send(decoded)
    except (EOFError, BrokenPipeError):
        pass  # the experiment has ended
    except Exception as error:  # any error of a library must reach the experiment
        logger.debug("traceback:", exc_info=True)
        connection.send(str(error) or type(error).__name__)


def peak_memory() -> int | None:
    """Return the peak of this process in bytes, where the system tells it."""
    with suppress(OSError):
        status = Path("/proc/self/status").read_text("utf-8")
        if peak := re.search(r"VmHWM:\s*(\d+) kB", status):
            return int(peak[1]) * 1024
    return None


class SystemProcess:
    """A system in a process of its own, which waits at a pipe while it has nothing to do."""

    def __init__(self, name: str, job: object, threads: int) -> None:
        """Start the process, and let ``job`` load, which has ``load()`` and ``decode()``."""
        self.name = name
        self._connection, other_end = Pipe()
        environment = ENVIRONMENT | os.environ | dict.fromkeys(THREADS, str(threads))
        with other_end:
            self._process = subprocess.Popen(
                python_program(CODE, other_end.fileno()),
                pass_fds=[other_end.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # Ctrl-C is for this process, which then ends the others.
                start_new_session=True,
            )
        with suppress(OSError):  # if it has ended, load() says so
            self._connection.send(job)

    def close(self) -> None:
        """End the process, whatever it does."""
        self._connection.close()
        self._process.kill()
        self._process.wait()

    def decode(self, batches: int, seed: int) -> Decoded:
        """Have the first ``batches`` decoded; ``seed`` decides drawn output."""
        with suppress(OSError):
            self._connection.send((batches, seed))
        return self.load()

    def load(self) -> Decoded:
        """Wait until it has loaded, or decoded."""
        try:
            answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise InferenceError(
                f"{self.name}: its process ended (status {self._process.wait()}); if memory does "
                "not suffice for all systems at once, compare fewer"
            ) from error
        if isinstance(answer, Decoded):
            return answer
        raise InferenceError(f"{self.name}: {answer}")
