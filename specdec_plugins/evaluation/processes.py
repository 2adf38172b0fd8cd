"""A system at work in a process of its own."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from multiprocessing import Pipe
from types import TracebackType

from specdec_plugins.evaluation.worker import Decoded, Failure, Job
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.machine import python_path, python_program

logger = logging.getLogger(__name__)

CODE = "from specdec_plugins.evaluation.worker import main; main()"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# Threads that have nothing to do must not spin on: they would take the core of what is measured.
# But those of what is measured have to for some milliseconds, from one piece of work to the next:
# PyTorch's would be woken by the kernel each time, which takes it three times as long.
PASSIVE = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "5", "GOMP_SPINCOUNT": "1000000"}


class SystemProcess:
    """A system in a process of its own, which waits at a pipe while it has nothing to do.

    As a context it is ended when that is left.
    """

    def __init__(self, name: str, job: Job, threads: int) -> None:
        """Start it, and let it load."""
        self.name = name
        self._connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                python_program(CODE, theirs.fileno()),
                pass_fds=[theirs.fileno()],
                env=environment(threads),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # Ctrl-C is for this process, which then ends the others.
                start_new_session=True,
            )
        self._send(job)

    def __enter__(self) -> SystemProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self._connection.close()
        if kind is not None:
            self._process.kill()  # it may be in the middle of something
        self._process.wait()

    def load(self) -> None:
        """Wait until it has loaded.

        Raises:
            InferenceError: it failed.
        """
        self._receive()

    def decode(self, batches: int, seed: int | None = None) -> Decoded:
        """Have so many batches decoded, as a :class:`Job` does.

        Raises:
            InferenceError: it failed.
        """
        self._send((batches, seed))
        return self._receive()

    def _receive(self) -> Decoded:
        try:
            answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._ended() from error
        if isinstance(answer, Failure):
            logger.debug("%s: %s", self.name, answer.traceback)
            raise InferenceError(f"{self.name}: {answer.message}")
        assert isinstance(answer, Decoded)
        return answer

    def _send(self, message: object) -> None:
        try:
            self._connection.send(message)
        except OSError as error:
            raise self._ended() from error

    def _ended(self) -> InferenceError:
        status = self._process.wait()
        return InferenceError(
            f"{self.name}: its process ended (status {status}); if memory does not suffice for all "
            "systems at once, compare fewer (--threads, --precision, --beam)"
        )


def waiting() -> dict[str, str]:
    """Return how threads of all systems wait: variables that say it."""
    return {name: os.environ.get(name, value) for name, value in PASSIVE.items()}


def environment(threads: int) -> dict[str, str]:
    """Variables of a process for so many threads. Those of ``PASSIVE`` may be set otherwise by
    whoever runs the command."""
    own = {"PYTHONPATH": python_path(), **dict.fromkeys(THREADS, str(threads))}
    if not sys.warnoptions:
        own["PYTHONWARNINGS"] = "ignore"
    return {**os.environ, **waiting(), **own}
