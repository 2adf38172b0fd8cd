"""``specdec-translate-corpus`` with real workers; workers and drivers are killed."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from drafters import save_pair
from kills import make_text
from scripts_here import SCRIPTS, TOOLS
from scripts_here import run as run_program

from specdec_plugins.cli import translate_corpus as script
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.files.lines import InputLines
from specdec_plugins.inference import Settings, load_translator

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed (extra [ray])"
)
PATIENCE = 180.0
"""Seconds to wait for what takes a few, on a machine that is busy."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with dictionaries, a verifier and a drafter."""
    return save_pair(tmp_path_factory.mktemp("model"))


def translated(model: Path, source: Path) -> str:
    """By one translator in this process, line by line."""
    translator = load_translator(Settings.of_model(model, limits=GenerationLimits(max_len_b=9)))
    with InputLines.open(str(source)) as lines:
        return "".join(f"{result.text}\n" for result in translator.translate(lines))


def flags_of(model: Path, source: Path, output: Path) -> list[str]:
    files = f"--input-path {source} --output-path {output}"
    return f"{model} {files} --cpu --max-len-b 9".split()


def run(model: Path, source: Path, output: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return run_program("specdec-translate-corpus", *flags_of(model, source, output), *more)


def numbers(done: subprocess.CompletedProcess[str]) -> tuple[int, int]:
    """Lines translated, and lines that were there, by the command's last line."""
    found = re.search(r"(\d+) lines of .* translated, (\d+) before", done.stderr)
    assert found, done.stderr[-2000:]
    return int(found[1]), int(found[2])


@needs_ray
@pytest.mark.slow
def test_a_folder_through_a_pool(model: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "in", tmp_path / "out"
    (source / "more").mkdir(parents=True)
    (source / "a.txt").write_text(make_text(45))
    (source / "empty.txt").write_text("")
    (source / "more" / "b.txt").write_text("\ufeffw1 w2\r\n\nw3")
    (source / ".notes").write_text("w1\n")
    workers = str(min(2, os.cpu_count() or 1))
    done = run(model, source, output, "--workers", workers, "--shard-lines", "10")
    assert numbers(done) == (48, 0)
    assert "passed over: .notes" in done.stderr
    for name in ("a.txt", "empty.txt", "more/b.txt"):
        assert (output / name).read_text() == translated(model, source / name)
    # Nothing is left to do, so no worker is started, and other workers are no other job.
    assert numbers(run(model, source, output, "--workers", "9", "--shard-lines", "10")) == (0, 48)


def workers_of(driver: int) -> set[int]:
    """The living processes below a driver that hold models."""
    table, below = {}, [driver]
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            state, parent, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            holds = b"ShardTranslator" in (folder / "cmdline").read_bytes()
            if state != "Z":
                table[int(folder.name)] = int(parent), holds
    for process in below:
        below += [child for child, (parent, _) in table.items() if parent == process]
    return {process for process in below if process in table and table[process][1]}


@needs_ray
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc")
def test_a_worker_is_killed(model: Path, tmp_path: Path) -> None:
    """Another goes on; tests/test_kills.py kills the whole job."""
    source, output = tmp_path / "in.txt", tmp_path / "out"
    source.write_text(make_text(803))
    flags = [*flags_of(model, source, output), "--workers", "1", "--shard-lines", "20"]
    with subprocess.Popen([TOOLS / "specdec-translate-corpus", *flags]) as driver:

        def wait_for_shards(count: int) -> int:
            end = time.monotonic() + PATIENCE
            while (done := len([*(output / ".job").glob("*/[0-9]*.txt")])) < count:
                assert time.monotonic() < end, "nothing happens"
                time.sleep(0.02)
            return done

        try:
            done = wait_for_shards(3)
            (worker,) = workers_of(driver.pid)
            os.kill(worker, signal.SIGKILL)
            wait_for_shards(done + 4)
            assert workers_of(driver.pid) - {worker}
            assert driver.wait(PATIENCE) == 0
        finally:
            driver.kill()
    assert (output / "in.txt").read_text() == translated(model, source)


@needs_ray
@pytest.mark.parametrize(
    ("flags", "status"),
    [
        ("--workers 0", 2),
        ("--batch 0", 2),
        ("--input-path nowhere", 1),
        ("--output-path .", 1),
        ("--target-prefix word", 2),
        ("--AR-path drafter.pt", 1),
    ],
)
def test_bad_input_comes_before_work(
    model: Path, flags: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model)
    (tmp_path / "in.txt").write_text("w1\n")
    words = [*flags_of(model, tmp_path / "in.txt", tmp_path / "out"), *flags.split()]
    try:
        found: object = script.main(words)
    except SystemExit as stop:
        found = stop.code
    assert found == status
    assert not (tmp_path / "out").exists()


@needs_ray
@pytest.mark.slow
def test_errors_of_ray_and_of_workers_are_one_line(model: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out"
    source.write_text("w1\n")
    for workers in ("999", "1"):
        done = run(model, source, output, "--workers", workers)
        (output / ".job" / "000000").write_text("where a folder of shards should be")
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith("specdec-translate-corpus: ")


def test_without_ray_its_extra_is_named(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "specdec_plugins.jobs.pool", raising=False)
    assert script.main(flags_of(model, tmp_path, tmp_path / "out")) == 1
    assert "[ray]" in capsys.readouterr().err


@needs_ray
@pytest.mark.slow
def test_distillation_by_workers(model: Path, tmp_path: Path) -> None:
    """``distill.sh --workers`` says what one process says; a half of each is not one whole."""
    text = tmp_path / "bpe"
    text.mkdir()
    for split, lines in (("train", 20), ("valid", 4)):
        for language in ("en", "de"):
            (text / f"{split}.{language}").write_text(make_text(lines).replace("\n\n", "\nw1\n"))

    def distill(out: str, *options: str) -> subprocess.CompletedProcess[str]:
        flags = f"{model}/verifier.pt {model} {text} {tmp_path / out} en de --max-len-b 9 --cpu"
        return run_program(SCRIPTS / "distill.sh", "--keep-valid", *options, *flags.split())

    assert distill("alone").returncode == 0
    done = distill("shared", "--workers", "1")
    assert done.returncode == 0, done.stderr[-2000:]
    for name in ("bpe/train.en", "bpe/train.de", "bpe/valid.de", "bin/train.en-de.de.bin"):
        found = (tmp_path / "shared" / name).read_bytes()
        assert found == (tmp_path / "alone" / name).read_bytes(), name
    assert numbers(distill("shared", "--workers", "2")) == (0, 20)
    assert "nothing says what it is made of" in distill("shared").stderr
