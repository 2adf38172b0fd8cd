"""Commands that are killed at random moments, and what they must have left then.

    PYTHONPATH=. python tests/kills.py 200

kills them so often, in sum, and says what was lost: nothing. Some are run in forks of this process,
which saves them the imports; what is killed is a process all the same.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from conftest import make_verifier
from drafters import save_checkpoint, save_pair

UNFINISHED = (".part", ".lock")
"""Ends of names of what a killed process may leave."""
SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


def load(name: str) -> Any:
    """A script as a module."""
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


def spawn(command: list[str]) -> int:
    """Begin a program in a process group of its own; returns its id."""
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=nowhere, stderr=nowhere, start_new_session=True)
    process.returncode = 0  # it is waited for here, not there
    return process.pid


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
    """Of a folder at any moment, beside that of a run that was left alone."""
    finished: Callable[[Path, Path], None]
    """Of a folder when it is complete."""
    alone: Path
    seconds: float = 0.0
    """What a run takes that is left alone."""
    kills: int = 0
    finishes: int = 0
    random: random.Random = field(default_factory=lambda: random.Random(1))

    def run_alone(self) -> None:
        """The run to compare others with."""
        self.alone.mkdir()
        begin = time.monotonic()
        assert self.wait(self.start(self.alone)) == 0, f"{self.name} failed"
        self.seconds = time.monotonic() - begin
        self.finished(self.alone, self.alone)

    def kill(self, folder: Path, kills: int) -> None:
        """Kill so many runs, each going on where the last one was; begin anew when one is done."""
        folder.mkdir()
        left = kills
        while left:
            fresh, begin = not any(folder.iterdir()), time.monotonic()
            process = self.start(folder)
            end = begin + self.random.uniform(0, 1.05 * self.seconds)
            ended = status = 0
            while not ended and time.monotonic() < end:
                time.sleep(0.002)
                ended, status = os.waitpid(process, os.WNOHANG)
            if not ended:
                os.killpg(process, signal.SIGKILL)
                os.waitpid(process, 0)
                self.kills += 1
                left -= 1
                self.check(folder, self.alone)
            else:
                seconds = time.monotonic() - begin
                assert status == 0, f"{self.name} does not go on"
                self.finish(folder)
                folder.mkdir()
                if fresh:  # the first run of all had to compile, or was disturbed
                    self.seconds = min(self.seconds, seconds)
        assert self.wait(self.start(folder)) == 0, f"{self.name} does not go on"
        self.finish(folder)

    def finish(self, folder: Path) -> None:
        """Look at what is complete, and remove it."""
        self.finished(folder, self.alone)
        self.finishes += 1
        shutil.rmtree(folder)

    @staticmethod
    def wait(process: int) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def same_files(folder: Path, alone: Path) -> None:
    """Both hold the same files, but for the names of those that were being written at a kill."""
    left = [name for name in names(folder) if not name.endswith(UNFINISHED)]
    assert left == names(alone)
    for name in left:
        assert (folder / name).read_bytes() == (alone / name).read_bytes(), name


def inference(world: Path, batch: int, lines: int = 120) -> Victim:
    """With a trace, always with ``--resume``."""
    script = load("inference")
    source = world / f"{lines}.txt"
    source.write_text(make_text(lines))

    def start(folder: Path) -> int:
        pair = f"--path {world}/drafter.pt --AR-path {world}/verifier.pt --batch {batch}"
        files = f"--input-path {source} --output-path {folder}/out --trace {folder}/trace"
        flags = f"{world} {pair} {files} --max-len-b 9 --cpu --resume --quiet"
        return fork(lambda: int(script.main(flags.split())))

    def check(folder: Path, alone: Path) -> None:
        whole = (alone / "out").read_bytes()
        out = (folder / "out").read_bytes() if (folder / "out").exists() else b""
        assert whole.startswith(out), "lines were lost, repeated or changed"
        if out:
            traced = (folder / "trace").read_bytes().count(b"\n")
            assert out.count(b"\n") <= traced
        assert set(names(folder)) <= {"out", "trace", "out.resume"} | parts(folder)

    def finished(folder: Path, alone: Path) -> None:
        assert (folder / "out").read_bytes() == (alone / "out").read_bytes()
        traced = [json.loads(line)["output"] for line in (folder / "trace").open()]
        assert traced == (folder / "out").read_text().splitlines()
        assert set(names(folder)) - parts(folder) == {"out", "trace", "out.resume"}

    return Victim(f"inference, batch {batch}", start, check, finished, world / f"alone{batch}")


def parts(folder: Path) -> set[str]:
    return {name for name in names(folder) if name.endswith(UNFINISHED)}


def evaluate(world: Path) -> Victim:
    script = load("evaluate")
    source = world / "evaluate.txt"
    source.write_text(make_text(6))
    runs: list[bytes] = []

    def start(folder: Path) -> int:
        pair = f"--path {world}/drafter.pt --AR-path {world}/verifier.pt "
        files = f"--input-path {source} --output-path {folder}/sweep --rounds 2"
        systems = "--systems constant@max_draft=1 constant@max_draft=2"
        flags = (
            f"{world} {pair} {files} --max-len-b 9 --cpu --no-plots --warmup 1 --quiet {systems}"
        )
        return fork(lambda: int(script.main(flags.split())))

    def check(folder: Path, alone: Path) -> None:
        path = folder / "sweep" / "runs.jsonl"
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines if line.endswith(b"\n")]
        assert len(lines) - len(whole) <= 1
        assert whole[: len(runs)] == runs, "runs were lost"
        runs[:] = whole
        keys = [(run["system"], run["round"]) for run in map(json.loads, whole)]
        assert len(keys) == len(set(keys)), "runs were repeated"
        for file in folder.rglob("*.json*"):
            if file != path and not file.name.endswith(UNFINISHED):
                for text in [file.read_text()] if file.suffix == ".json" else file.open():
                    json.loads(text)

    def finished(folder: Path, alone: Path) -> None:
        check(folder, alone)
        assert len(runs) == 4
        runs.clear()
        left = set(names(folder)) - parts(folder)
        assert left == set(names(alone))

    return Victim("evaluate", start, check, finished, world / "alone_evaluate")


def export(world: Path) -> Victim:
    script = load("export_checkpoint")
    source = world / "large.pt"
    save_checkpoint(source, make_verifier(encoder_ffn_embed_dim=80_000).float())

    def start(folder: Path) -> int:
        return fork(lambda: int(script.main([str(source), str(folder / "small.pt")])))

    def check(folder: Path, alone: Path) -> None:
        path = folder / "small.pt"
        if path.exists():
            assert path.read_bytes() == (alone / "small.pt").read_bytes(), "half a file"

    return Victim("export", start, check, same_files, world / "alone_export")


def distill(world: Path) -> Victim:
    text = world / "bpe"
    text.mkdir()
    for split, lines in (("train", 400), ("valid", 20)):
        for language in ("en", "de"):
            (text / f"{split}.{language}").write_text(make_text(lines).replace("\n\n", "\nw1\n"))

    def start(folder: Path) -> int:
        arguments = f"{world}/verifier.pt {world} {text} {folder}/out en de --max-len-b 9 --batch 4"
        return spawn([str(SCRIPTS / "distill.sh"), *arguments.split(), "--cpu", "--quiet"])

    def check(folder: Path, alone: Path) -> None:
        for name in names(folder):
            if name.endswith(".de"):
                found = (folder / name).read_bytes()
                assert (alone / name).read_bytes().startswith(found), name
            elif "/bin/" in name or name.endswith(".en"):
                assert (folder / name).read_bytes() == (alone / name).read_bytes(), name

    def finished(folder: Path, alone: Path) -> None:
        for run in (folder, alone):
            (run / "out" / "bin" / "preprocess.log").unlink(missing_ok=True)  # it tells times
        same_files(folder, alone)

    return Victim("distill", start, check, finished, world / "alone_distill")


def translate_corpus(world: Path) -> Victim:
    source = world / "corpus"
    source.mkdir()
    for name, lines in (("a.txt", 400), ("b.txt", 150), ("empty.txt", 0)):
        (source / name).write_text(make_text(lines))

    def start(folder: Path) -> int:
        pair = f"--path {world}/drafter.pt --AR-path {world}/verifier.pt --max-len-b 9 --cpu"
        files = f"--input-path {source} --output-path {folder}/out --shard-lines 20"
        command = [str(Path(sys.executable).with_name("specdec-translate-corpus")), str(world)]
        return spawn([*command, *pair.split(), *files.split()])

    def check(folder: Path, alone: Path) -> None:
        for path in (folder / "out").glob("*.txt"):
            assert path.read_bytes() == (alone / "out" / path.name).read_bytes()

    return Victim("translate_corpus", start, check, same_files, world / "alone_corpus")


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill commands at random moments.")
    parser.add_argument("kills", type=int, help="in sum")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        world = save_pair(Path(name))
        shares: list[tuple[Callable[[Path], Victim], float]] = [
            (lambda world: inference(world, 1), 0.3),
            (lambda world: inference(world, 4), 0.3),
            (evaluate, 0.14),
            (export, 0.16),
            (distill, 0.06),
            (translate_corpus, 0.04),
        ]
        for make, share in shares:
            victim = make(world)
            victim.random.seed(args.seed)
            victim.run_alone()
            victim.kill(world / "killed", max(1, round(share * args.kills)))
            print(
                f"{victim.name}: {victim.kills} kills, {victim.finishes} times finished, "
                f"nothing lost; {victim.seconds:.1f} s a run that is left alone",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
