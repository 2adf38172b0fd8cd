"""``specdec-translate-corpus`` with real workers; workers and drivers are killed."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from drafters import save_pair

from specdec_plugins.cli import translate_corpus as script
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.files.lines import InputLines
from specdec_plugins.files.output import as_read, differing
from specdec_plugins.inference import Settings, load_translator
from specdec_plugins.inference.flags import make_settings
from specdec_plugins.jobs.corpus import describe_job, read_corpus, translate_shard

COMMAND = Path(sys.executable).with_name("specdec-translate-corpus")
SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed (extra [ray])"
)
LIMITS = GenerationLimits(max_len_b=9)
PATIENCE = 180.0
"""Seconds to wait for what takes a few, on a machine that is busy."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with dictionaries, a verifier and a drafter."""
    return save_pair(tmp_path_factory.mktemp("model"))


def make_text(lines: int) -> str:
    """Lines of 1 to 9 words, all different in sum, and some empty."""
    rows = (
        " ".join(f"w{(line * 7 + word * word) % 20}" for word in range(line % 10))
        for line in range(lines)
    )
    return "".join(f"{row}\n" for row in rows)


def translated(model: Path, source: Path) -> str:
    """By one translator in this process, line by line."""
    files = {"path": str(model / "drafter.pt"), "ar_path": str(model / "verifier.pt")}
    translator = load_translator(Settings(data=str(model), limits=LIMITS, **files))
    with InputLines.open(str(source)) as lines:
        return "".join(f"{result.text}\n" for result in translator.translate(lines))


def command(model: Path, source: Path, output: Path, *flags: str) -> list[str]:
    own = f"{model} --path {model}/drafter.pt --AR-path {model}/verifier.pt --cpu --max-len-b 9"
    paths = f"--input-path {source} --output-path {output}"
    return [str(COMMAND), *own.split(), *paths.split(), *flags]


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),  # type: ignore[arg-type]
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * PATIENCE,
        env={**os.environ, **environment},
    )


def numbers(summary: str) -> tuple[int, int]:
    """Lines translated, and lines that were there, by the command's last line."""
    found = re.search(r"(\d+) lines of .* translated, (\d+) before", summary)
    assert found, summary[-2000:]
    return int(found[1]), int(found[2])


@needs_ray
@pytest.mark.slow
def test_a_folder_through_a_pool(model: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "in", tmp_path / "out"
    (source / "more").mkdir(parents=True)
    (source / "a.txt").write_text(make_text(45))
    (source / "empty.txt").write_text("")
    (source / "more" / "b.txt").write_text("\ufeffw1 w2\r\n\nw3")
    (source / "more" / "around").symlink_to(source)
    (source / ".notes").write_text("w1\n")
    workers = str(min(2, os.cpu_count() or 1))
    done = run(model, source, output, "--workers", workers, "--shard-lines", "10")
    assert done.returncode == 0, done.stderr[-3000:]
    assert numbers(done.stderr) == (48, 0)
    assert "passed over: " in done.stderr
    for name in ("a.txt", "empty.txt", "more/b.txt"):
        assert (output / name).read_text() == translated(model, source / name)
    assert "WARNING" not in done.stderr
    # Nothing is left to do, so no worker is started, and other workers are no other job.
    again = run(model, source, output, "--workers", "9", "--shard-lines", "10")
    assert again.returncode == 0, again.stderr[-3000:]
    assert numbers(again.stderr) == (0, 48)


def parents() -> dict[int, tuple[int, str]]:
    """Parent and name of every process."""
    table = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            after_name = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        if after_name[0] != "Z":
            table[int(folder.name)] = (int(after_name[1]), name)
    return table


def descendants(ancestor: int) -> dict[int, str]:
    table = parents()

    def descends(process: int) -> bool:
        while process in table:
            process = table[process][0]
            if process == ancestor:
                return True
        return False

    return {process: name for process, (_, name) in table.items() if descends(process)}


def wait_for(condition: Callable[[], object], driver: subprocess.Popen[str]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert driver.poll() is None, "the driver has ended"
        assert time.monotonic() < end, "nothing happens"
        time.sleep(0.02)


class Driver:
    """A run of the script that can be watched and killed, with all that it started."""

    def __init__(self, arguments: list[str], log: Path, output: Path) -> None:
        self.output = output
        self.started: dict[int, str] = {}
        with open(log, "w") as file:
            self.process = subprocess.Popen(arguments, stderr=file, text=True)

    def done(self) -> int:
        """Shards whose translation is there."""
        return len(list((self.output / ".job").glob("*/[0-9]*.txt")))

    def wait_for_shards(self, count: int) -> None:
        wait_for(lambda: self.done() >= count, self.process)

    def workers(self) -> set[int]:
        """The workers that hold models."""
        self.started.update(descendants(self.process.pid))
        return {process for process, name in self.started.items() if "ShardTranslator" in name}

    def kill(self) -> None:
        """Kill the driver alone; its workers are to end by themselves."""
        workers = self.workers()
        self.process.kill()
        self.process.wait()
        end = time.monotonic() + PATIENCE
        while left := workers & parents().keys():
            assert time.monotonic() < end, f"workers are left: {left}"
            time.sleep(0.1)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    """``start(argument, …)``; whatever the test leaves of it is ended."""
    drivers: list[Driver] = []

    def start_driver(model: Path, source: Path, output: Path, *flags: str) -> Driver:
        arguments = command(model, source, output, *flags)
        drivers.append(Driver(arguments, tmp_path / "log", output))
        return drivers[-1]

    yield start_driver
    for driver in drivers:
        if driver.process.poll() is None:
            driver.kill()


@needs_ray
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc")
def test_a_worker_and_then_the_driver_are_killed(
    model: Path, tmp_path: Path, start: Callable[..., Driver]
) -> None:
    source, output = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    for name, lines in (("a.txt", 803), ("b.txt", 400)):
        (source / name).write_text(make_text(lines))
    flags = ("--workers", "1", "--shard-lines", "20")
    shards = 41 + 20
    driver = start(model, source, output, *flags)
    driver.wait_for_shards(3)
    (worker,) = driver.workers()
    os.kill(worker, signal.SIGKILL)
    before = driver.done()
    # The only worker is gone: whatever is done from here on, another does.
    driver.wait_for_shards(before + 4)
    assert driver.done() < shards
    assert len(driver.workers()) == 2
    driver.kill()
    kept = driver.done()
    assert kept < shards
    assert not list(output.glob("*.txt"))
    done = run(model, source, output, *flags)
    assert done.returncode == 0, done.stderr[-3000:]
    fresh, there = numbers(done.stderr)
    assert fresh + there == 1203
    assert 20 * (kept - 2) < there <= 20 * kept
    for name in ("a.txt", "b.txt"):
        assert (output / name).read_text() == translated(model, source / name)


def test_a_target_prefix_is_forced_on_all_shards(model: Path, tmp_path: Path) -> None:
    """And is a part of what a job is known by."""
    (source := tmp_path / "in.txt").write_text(make_text(6))
    flags = ["--batch", "4", "--target-prefix", "w4 w2"]
    args = script.parse(command(model, source, tmp_path / "out", *flags)[1:])
    settings = make_settings(args)
    files = {"in.txt": source}
    (shard,) = read_corpus(files, tmp_path / "out", shard_lines=10)["in.txt"]
    Path(shard.output).parent.mkdir(parents=True)
    translate_shard(load_translator(settings), shard, args.seed)
    blank, *outputs = Path(shard.output).read_text().splitlines()
    assert blank == ""
    assert len(set(outputs)) > 2
    assert all(output.startswith("w4 w2") for output in outputs)
    free = replace(settings, target_prefix=None)
    job, other = (as_read(describe_job(files, one, 1, 10)) for one in (settings, free))
    assert differing(job, other) == "settings.target_prefix"


@needs_ray
def test_errors_are_one_line(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """All of them before a worker is started, and before anything is written."""
    source, output = tmp_path / "in.txt", tmp_path / "out"
    source.write_text("w1\n")
    good: list[str | Path] = [model, source, output]
    for arguments, status, message in (
        ([*good, "--workers", "0"], 2, "must be at least 1"),
        ([*good, "--batch", "0"], 2, "--batch 0: must be at least 1"),
        ([model, tmp_path / "nowhere", output], 1, "nowhere: cannot be read"),
        ([model, source, tmp_path], 1, "holds something else"),
        ([*good, "--target-prefix", "word"], 2, "--target-prefix word: the target dictionary has"),
        ([*good, "--AR-path", f"{model}/drafter.pt"], 1, "is no verifier"),
    ):
        try:
            found = script.main(command(*arguments)[1:])  # type: ignore[arg-type]
        except SystemExit as stop:
            found = stop.code
        assert found == status
        *_, last = capfd.readouterr().err.splitlines()
        assert last.startswith("translate_corpus.py: ")
        assert message in last
        assert not output.exists()


@needs_ray
@pytest.mark.slow
def test_errors_of_ray_and_of_workers_are_one_line(model: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out"
    source.write_text("w1\n")
    for workers, message in (
        ("999", "--workers 999: need 999 CPUs, and Ray has "),
        ("1", f"{output}/.job/000000/000000000.txt: cannot be written (File exists)"),
    ):
        done = run(model, source, output, "--workers", workers)
        (output / ".job" / "000000").write_text("where a folder of shards should be")
        assert done.returncode == 1
        *_, last = done.stderr.splitlines()
        assert last.startswith(f"specdec-translate-corpus: {message}"), done.stderr[-3000:]


def test_without_ray_its_extra_is_named(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "specdec_plugins.jobs.pool", raising=False)
    assert script.main(command(model, tmp_path, tmp_path / "out")[1:]) == 1
    error = capsys.readouterr().err
    assert re.fullmatch(r"translate_corpus.py: .*\bray\b.*; .*\[ray\].*\n", error)


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
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return subprocess.run(
            [str(SCRIPTS / "distill.sh"), "--keep-valid", *options, *flags.split()],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PATH": path},
        )

    assert distill("alone").returncode == 0
    done = distill("shared", "--workers", "1")
    assert done.returncode == 0, done.stderr[-2000:]
    for name in ("bpe/train.en", "bpe/train.de", "bpe/valid.de", "bin/train.en-de.de.bin"):
        found = (tmp_path / "shared" / name).read_bytes()
        assert found == (tmp_path / "alone" / name).read_bytes(), name
    assert numbers(distill("shared", "--workers", "2").stderr) == (0, 20)
    assert "nothing says what it is made of" in distill("shared").stderr
