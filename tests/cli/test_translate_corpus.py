"""``specdec-translate-corpus`` with real workers; workers and drivers are killed."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.models.drafters import save_pair
from helpers.runs.kills import make_text
from helpers.runs.scripts_here import TOOLS
from helpers.runs.scripts_here import run as run_program

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


def run(model: Path, source: Path, output: Path, workers: int) -> str:
    flags = [*flags_of(model, source, output), "--shard-lines", "10", "--workers", workers]
    return run_program("specdec-translate-corpus", *flags, status=0).stderr


@needs_ray
@pytest.mark.slow
def test_a_folder_through_a_pool(model: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "in", tmp_path / "out"
    (source / "more").mkdir(parents=True)
    (source / "a.txt").write_text(make_text(45))
    (source / "empty.txt").write_text("")
    (source / "more" / "b.txt").write_text("\ufeffw1 w2\r\n\nw3")
    (source / ".notes").write_text("w1\n")
    said = run(model, source, output, 2)
    assert re.search(r"48 lines of .* translated, 0 before", said)
    assert "passed over: .notes" in said
    for name in ("a.txt", "empty.txt", "more/b.txt"):
        assert (output / name).read_text() == translated(model, source / name)
    # Nothing is left to do, so no worker is started, and other workers are no other job.
    assert re.search(r"0 lines of .* translated, 48 before", run(model, source, output, 9))


@needs_ray
@pytest.mark.slow
def test_a_worker_is_killed(model: Path, tmp_path: Path) -> None:
    """Another goes on; tests/test_kills.py kills the whole job."""
    psutil = pytest.importorskip("psutil", reason="psutil, which Ray can bring, is not here")
    source, output = tmp_path / "in.txt", tmp_path / "out"
    source.write_text(make_text(803))
    flags = [*flags_of(model, source, output), "--workers", "1", "--shard-lines", "20"]
    with subprocess.Popen([TOOLS / "specdec-translate-corpus", *flags]) as driver:
        try:
            end = time.monotonic() + PATIENCE
            while len([*(output / ".job").glob("*/[0-9]*.txt")]) < 3:
                assert time.monotonic() < end, "nothing happens"
                time.sleep(0.02)
            children = psutil.Process(driver.pid).children(recursive=True)
            (worker,) = (p for p in children if "ShardTranslator" in " ".join(p.cmdline()))
            worker.kill()
            assert not (output / "in.txt").exists()
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
@pytest.mark.parametrize(("flags", "has_drafter"), [("", False), ("--drafts drafter", True)])
def test_the_driver_looks_at_the_models_that_workers_load(
    flags: str, has_drafter: bool, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drafter that nobody asks may be damaged."""
    seen: list[Settings] = []
    monkeypatch.setattr(script, "load", lambda settings, _: seen.append(settings) or sys.exit(9))
    (tmp_path / "in.txt").write_text("w1\n")
    with pytest.raises(SystemExit):
        script.main([*flags_of(model, tmp_path / "in.txt", tmp_path / "out"), *flags.split()])
    assert [settings.has_drafter for settings in seen] == [has_drafter]


def test_without_ray_its_extra_is_named(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "specdec_plugins.jobs.pool", raising=False)
    assert script.main(flags_of(model, tmp_path, tmp_path / "out")) == 1
    assert "[ray]" in capsys.readouterr().err
