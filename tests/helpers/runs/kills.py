"""Commands that are killed at random moments, and processes that are forks of this one.

A fork saves the imports; a process is killed all the same.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

UNFINISHED = (".part", ".lock")
"""Ends of names of files that a killed process may leave."""


def fork(run: Callable[[], int]) -> int:
    """Begin ``run`` in a process group of its own; returns its id."""
    process = os.fork()
    if process:
        with suppress(OSError):  # the child may have done so, or have ended
            os.setpgid(process, process)
        return process
    status = 70
    try:
        os.setpgid(0, 0)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nowhere, descriptor)
        status = run()
    finally:
        os._exit(status)


def make_text(lines: int) -> str:
    return "".join(
        " ".join(f"w{(line * 7 + word * word) % 20}" for word in range(line % 10)) + "\n"
        for line in range(lines)
    )


@dataclass
class Victim:
    """A command whose output is known."""

    name: str
    start: Callable[[Path], int]
    """Begins it, or goes on with it, in a folder; returns the process."""
    check: Callable[[Path, Path], None]
    """Checks a folder at any moment beside that of a run that was left alone."""
    finished: Callable[[Path, Path], None]
    """Checks a complete folder."""
    alone: Path
    seconds: float = 0.0
    """The time of a run that is left alone."""

    def run_alone(self) -> None:
        """Make the run to compare others with."""
        self.alone.mkdir()
        begin = time.monotonic()
        assert self.wait(self.start(self.alone)) == 0, f"{self.name} failed"
        self.seconds = time.monotonic() - begin
        self.finished(self.alone, self.alone)

    def kill(self, folder: Path, kills: int) -> None:
        """Kill so many runs, each going on where the last one was; begin anew when one is done."""
        while kills:
            folder.mkdir(exist_ok=True)
            process = self.start(folder)
            end = time.monotonic() + random.uniform(0, 1.05 * self.seconds)
            ended = status = 0
            while not ended and time.monotonic() < end:
                time.sleep(0.002)
                ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                assert status == 0, f"{self.name} does not go on"
                self.finished(folder, self.alone)
                shutil.rmtree(folder)
                continue
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            kills -= 1
            self.check(folder, self.alone)
        assert self.wait(self.start(folder)) == 0, f"{self.name} does not go on"
        self.finished(folder, self.alone)
        shutil.rmtree(folder)

    @staticmethod
    def wait(process: int) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


class ForkedPython:
    """In place of ``subprocess.Popen``: Python code in a fork of this process, which saves it the
    imports. Its standard input ends with this process."""

    def __init__(self, program: list[str], *, env: Any, pass_fds: Any = (), **_: object) -> None:
        alive, self._alive = os.pipe()

        def run() -> int:
            os.dup2(alive, 0)
            for descriptor in {*range(3, 1024)} - {*pass_fds}:
                with suppress(OSError):
                    os.close(descriptor)
            os.environ |= env
            sys.argv = ["-c", *program[3:]]
            try:
                exec(program[2], {})
            except SystemExit as stop:
                return int(stop.code or 0)
            return 0

        self.pid = fork(run)
        os.close(alive)
        self.status: int | None = None

    def kill(self) -> None:
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        if self.status is None:
            self.status = Victim.wait(self.pid)
            os.close(self._alive)
        return self.status
