"""Systems in processes of their own: asked, failing, ended, and without what they do not need."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from fake_jobs import EchoJob
from trained import Trained

from specdec_plugins.evaluation.benchmark import worker
from specdec_plugins.evaluation.benchmark.own_systems import TranslatorJob
from specdec_plugins.evaluation.benchmark.processes import SystemProcess
from specdec_plugins.evaluation.benchmark.systems import BenchmarkSystem
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.inference import Settings


@pytest.fixture(autouse=True)
def _tests_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))


def test_a_process_has_what_it_needs_alone(capfd: pytest.CaptureFixture[str]) -> None:
    with SystemProcess("echo", EchoJob(), threads=3) as process:
        assert process.wait().decoded is None
        for batches in (2, 5):
            answer = process.decode(batches)
            assert answer.decoded is not None
            heavy, environment, asked = answer.decoded.outputs
            assert heavy == []
            assert environment == ["OMP_NUM_THREADS=3", "OMP_WAIT_POLICY=passive"]
            assert asked == [str(batches)]
        # Its own, not that of the process that started it.
        ours = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        assert 2**22 < answer.peak_memory < ours / 2
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def test_waiting_may_be_chosen_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    with SystemProcess("echo", EchoJob(), threads=1) as process:
        process.wait()
        decoded = process.decode(1).decoded
        assert decoded is not None
        assert decoded.outputs[1] == ["OMP_NUM_THREADS=1", "OMP_WAIT_POLICY=active"]


def test_a_failure_names_the_system() -> None:
    with (
        SystemProcess("echo, 1 thread", EchoJob("loading"), threads=1) as process,
        pytest.raises(InferenceError, match=r"^echo, 1 thread: --flag: cannot be"),
    ):
        process.wait()


def test_a_process_that_dies_is_noticed() -> None:
    with SystemProcess("echo", EchoJob("decoding"), threads=1) as process:
        process.wait()
        for _ in range(2):
            with pytest.raises(InferenceError, match=r"echo: its process ended \(status 3\); if"):
                process.decode(1)


def test_an_error_ends_processes_at_once() -> None:
    process = SystemProcess("echo", EchoJob(), threads=1)
    with pytest.raises(KeyError), process:
        raise KeyError
    assert process._process.returncode in (-9, 0)


def test_a_worker_whose_other_end_is_gone_ends_quietly() -> None:
    code = (
        "import os, sys; from multiprocessing import Pipe; "
        "from specdec_plugins.evaluation.benchmark import worker; "
        "ours, theirs = Pipe(); ours.close(); "
        "sys.argv = ['', str(os.dup(theirs.fileno()))]; worker.main()"
    )
    root = Path(worker.__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True, cwd=root
    )
    assert done.stdout == done.stderr == ""


def test_ours_in_its_process_says_what_it_says_here(trained: Trained) -> None:
    """Segmented text in, segmented text out, with the figures of its drafts."""
    base = Settings(
        str(trained.data),
        path=str(trained.drafter),
        ar_path=str(trained.verifier),
        source_lang="en",
        target_lang="de",
    )
    system = BenchmarkSystem("strict", "strict", "specdec", "eager", "float32", 1)
    batches = [[line.split() for line in trained.source[i : i + 4]] for i in (0, 4)]
    with SystemProcess("ours", TranslatorJob(system.settings(base, 4), batches), 1) as process:
        process.wait()
        decoded = process.decode(1).decoded
        assert decoded is not None
        assert len(decoded.outputs) == 4
        decoded = process.decode(2).decoded
    assert decoded is not None
    found = [" ".join(tokens) for tokens in decoded.outputs]
    assert found == trained.translate(limits=base.limits)[:8]
    assert decoded.seconds > 0
    assert decoded.figures["block_size"] == 4
    assert decoded.figures["acceptance_length"] > 1
