"""Killed at random moments, and with a disk that is full at random moments, nothing is lost."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from drafters import save_pair
from kills import evaluate, inference, load, make_text, translate_corpus

RANDOM = random.Random()
"""Other moments every time."""


@pytest.fixture
def world(tmp_path: Path) -> Path:
    return save_pair(tmp_path)


@pytest.fixture
def compiled(world: Path) -> None:
    """Compile in this process, for its forks."""
    (world / "warm").write_text(make_text(3))
    pair = f"--path {world}/drafter.pt --AR-path {world}/verifier.pt --input-path {world}/warm"
    flags = f"{world} {pair} --output-path {world}/warmed --max-len-b 9 --cpu --quiet"
    assert load("inference").main(flags.split()) == 0


@pytest.mark.parametrize(
    ("make", "kills"),
    [
        (lambda world: inference(world, 1, lines=40), 1),
        pytest.param(lambda world: inference(world, 4, lines=60), 1, marks=pytest.mark.slow),
        (evaluate, 1),
        pytest.param(translate_corpus, 5, marks=pytest.mark.slow),
    ],
    ids=["batch 1", "batch 4", "evaluate", "corpus"],
)
@pytest.mark.usefixtures("compiled")
def test_kills(world: Path, make: Any, kills: int) -> None:
    if make is translate_corpus:
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
    script, source = load("inference"), world / "in.txt"
    source.write_text(make_text(200))

    def run(folder: Path) -> int:
        pair = f"--path {world}/drafter.pt --AR-path {world}/verifier.pt --strategy AR --batch 8"
        files = f"--input-path {source} --output-path {folder}/out --resume"
        return int(script.main(f"{world} {pair} {files} --max-len-b 9 --quiet".split()))

    assert run(world) == 0
    whole = (world / "out").read_bytes()
    out, other = small_disk / "out", small_disk / "other"
    failures = 0
    for _ in range(6):
        free = os.statvfs(small_disk)
        left = free.f_bavail * free.f_bsize
        other.write_bytes(bytes(RANDOM.randint(max(0, left - 8192), left)))
        failures += run(small_disk)
        written = out.read_bytes() if out.exists() else b""
        assert whole.startswith(written)
        assert not written or written.endswith(b"\n")
        other.unlink()
    assert run(small_disk) == 0
    assert out.read_bytes() == whole
    assert failures
    assert sorted(path.name for path in small_disk.iterdir()) == ["out", "out.resume"]
