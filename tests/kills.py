"""Commands that are killed at random moments, and what they must have left then.

Some run in forks of this process, which saves them the imports; a process is killed all the same.
"""

from __future__ import annotations

import importlib
import json
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


def load(name: str) -> Any:
    """Return the module of a command."""
    return importlib.import_module(f"specdec_plugins.cli.{name}")


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


def names(folder: Path) -> list[str]:
    """Return the files of a folder but those that were being written."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return sorted(str(p.relative_to(folder)) for p in paths if not p.name.endswith(UNFINISHED))


def inference(world: Path, batch: int, lines: int = 120) -> Victim:
    """Return a translation with a trace and ``--resume``."""
    script, source = load("inference"), world / f"{lines}.txt"
    source.write_text(make_text(lines))

    def start(folder: Path) -> int:
        pair = f"--path {world}/drafter.pt --AR-path {world}/verifier.pt --batch {batch}"
        files = f"--input-path {source} --output-path {folder}/out --trace {folder}/trace"
        flags = f"{world} {pair} {files} --max-len-b 9 --cpu --resume --quiet"
        return fork(lambda: int(script.main(flags.split())))

    def check(folder: Path, alone: Path) -> None:
        out = (folder / "out").read_bytes() if (folder / "out").exists() else b""
        assert (alone / "out").read_bytes().startswith(out), "lines were lost or changed"
        if out:
            assert out.count(b"\n") <= (folder / "trace").read_bytes().count(b"\n")

    def finished(folder: Path, alone: Path) -> None:
        assert (folder / "out").read_bytes() == (alone / "out").read_bytes()
        traced = [json.loads(line)["output"] for line in (folder / "trace").open()]
        assert traced == (folder / "out").read_text().splitlines()
        assert names(folder) == ["out", "out.resume", "trace"]

    return Victim(f"inference, batch {batch}", start, check, finished, world / f"alone{batch}")


def evaluate(world: Path) -> Victim:
    script, source = load("evaluate"), world / "evaluate.txt"
    source.write_text(make_text(6))
    runs: list[bytes] = []

    def start(folder: Path) -> int:
        pair = f"{world} --path {world}/drafter.pt --AR-path {world}/verifier.pt --cpu"
        files = f"--input-path {source} --output-path {folder}/sweep --rounds 2 --no-plots"
        systems = "--systems constant@block_size=1 constant@block_size=2 --max-len-b 9 --warmup 1"
        return fork(lambda: int(script.main(f"{pair} {files} --quiet {systems}".split())))

    def check(folder: Path, alone: Path) -> None:
        path = folder / "sweep" / "runs.jsonl"
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines if line.endswith(b"\n")]
        assert len(lines) - len(whole) <= 1
        assert whole[: len(runs)] == runs, "runs were lost"
        runs[:] = whole
        keys = [(run["system"], run["round"]) for run in map(json.loads, whole)]
        assert len(keys) == len(set(keys)), "runs were repeated"

    def finished(folder: Path, alone: Path) -> None:
        check(folder, alone)
        assert len(runs) == 4
        runs.clear()
        assert names(folder) == names(alone)

    return Victim("evaluate", start, check, finished, world / "alone_evaluate")


def translate_corpus(world: Path) -> Victim:
    source = world / "corpus"
    source.mkdir()
    for name, lines in (("a.txt", 400), ("b.txt", 150), ("empty.txt", 0)):
        (source / name).write_text(make_text(lines))

    def start(folder: Path) -> int:
        pair = f"--path {world}/drafter.pt --AR-path {world}/verifier.pt --max-len-b 9 --cpu"
        files = f"--input-path {source} --output-path {folder}/out --shard-lines 20"
        command = Path(sys.executable).with_name("specdec-translate-corpus")
        return fork(lambda: os.execv(command, [command, str(world), *f"{pair} {files}".split()]))

    def check(folder: Path, alone: Path) -> None:
        for path in (folder / "out").glob("*.txt"):
            assert path.read_bytes() == (alone / "out" / path.name).read_bytes()

    def finished(folder: Path, alone: Path) -> None:
        assert names(folder) == names(alone)
        check(folder, alone)

    return Victim("translate_corpus", start, check, finished, world / "alone_corpus")
