"""Killed at random moments, and with a disk that is full at random moments, nothing is lost."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.models.drafters import save_pair
from helpers.runs.kills import UNFINISHED, ForkedPython, Victim, fork, make_text
from helpers.runs.scripts_here import TOOLS

from specdec_plugins.cli import evaluate, inference
from specdec_plugins.evaluation import worker


def names(folder: Path) -> list[str]:
    """Return the files of a folder but those that were being written."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return sorted(str(p.relative_to(folder)) for p in paths if not p.name.endswith(UNFINISHED))


def translation(world: Path, batch: int) -> Victim:
    """Return a translation with a trace and ``--resume``."""
    source = world / "translate.txt"
    source.write_text(make_text(40))

    def start(folder: Path) -> int:
        files = f"--input-path {source} --output-path {folder}/out --trace {folder}/trace"
        flags = f"{world} {files} --batch {batch} --max-len-b 9 --cpu --resume --quiet"
        return fork(lambda: int(inference.main(flags.split())))

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


def evaluation(world: Path) -> Victim:
    source = world / "evaluate.txt"
    source.write_text(make_text(6))
    runs: list[bytes] = []

    def start(folder: Path) -> int:
        files = f"--input-path {source} --output-path {folder}/sweep --rounds 2 --no-plots"
        flags = f"{world} {files} --cpu --quiet --systems constant --max-len-b 9 --warmup 1"

        def run() -> int:
            worker.subprocess.Popen = ForkedPython  # type: ignore[misc,assignment]
            return int(evaluate.main(flags.split()))

        return fork(run)

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
        assert len(runs) == 2
        runs.clear()
        assert names(folder) == names(alone)

    return Victim("evaluate", start, check, finished, world / "alone_evaluate")


def corpus(world: Path) -> Victim:
    source = world / "corpus"
    source.mkdir()
    for name, lines in (("a.txt", 400), ("b.txt", 150), ("empty.txt", 0)):
        (source / name).write_text(make_text(lines))

    def start(folder: Path) -> int:
        files = f"--input-path {source} --output-path {folder}/out --shard-lines 20"
        line = f"{TOOLS}/specdec-translate-corpus {world} {files} --max-len-b 9 --cpu".split()
        return fork(lambda: os.execv(line[0], line))

    def check(folder: Path, alone: Path) -> None:
        for path in (folder / "out").glob("*.txt"):
            assert path.read_bytes() == (alone / "out" / path.name).read_bytes()

    def finished(folder: Path, alone: Path) -> None:
        assert names(folder) == names(alone)
        check(folder, alone)

    return Victim("translate_corpus", start, check, finished, world / "alone_corpus")


@pytest.fixture
def world(tmp_path: Path) -> Path:
    return save_pair(tmp_path)


@pytest.fixture
def compiled(world: Path) -> None:
    """Compile in this process, for its forks."""
    (world / "warm").write_text(make_text(3))
    files = f"--input-path {world}/warm --output-path {world}/warmed"
    flags = f"{world} {files} --max-len-b 9 --cpu --quiet"
    assert inference.main(flags.split()) == 0


@pytest.mark.parametrize(
    ("make", "kills"),
    [
        (lambda world: translation(world, 1), 1),
        pytest.param(lambda world: translation(world, 4), 1, marks=pytest.mark.slow),
        (evaluation, 1),
        pytest.param(corpus, 5, marks=pytest.mark.slow),
    ],
    ids=["batch 1", "batch 4", "evaluate", "corpus"],
)
@pytest.mark.usefixtures("compiled")
def test_kills(world: Path, make: Any, kills: int) -> None:
    if make is corpus:
        pytest.importorskip("ray")
    victim = make(world)
    victim.run_alone()
    victim.kill(world / "killed", kills)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("file systems can be mounted by root alone, where that is allowed")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_full_at_random_moments(world: Path, small_disk: Path) -> None:
    """Another file takes up space, and is removed before the run goes on."""
    source = world / "in.txt"
    source.write_text(make_text(120))

    def run(folder: Path) -> int:
        files = f"--input-path {source} --output-path {folder}/out --resume"
        flags = f"{world} {files} --strategy AR --batch 8 --max-len-b 9 --quiet"
        return int(inference.main(flags.split()))

    assert run(world) == 0
    whole = (world / "out").read_bytes()
    out, other = small_disk / "out", small_disk / "other"
    failures = 0
    for _ in range(5):
        free = os.statvfs(small_disk)
        left = free.f_bavail * free.f_bsize
        other.write_bytes(bytes(random.randint(max(0, left - 8192), left)))
        failures += run(small_disk)
        written = out.read_bytes() if out.exists() else b""
        assert whole.startswith(written)
        assert not written or written.endswith(b"\n")
        other.unlink()
    assert run(small_disk) == 0
    assert out.read_bytes() == whole
    assert failures
    assert sorted(path.name for path in small_disk.iterdir()) == ["out", "out.resume"]
