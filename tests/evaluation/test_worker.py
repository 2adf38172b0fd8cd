"""Systems in processes of their own: asked, failing, ended, and without what they do not need."""

from __future__ import annotations

import resource
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.models.drafters import save_pair
from helpers.models.trained import Trained
from helpers.runs.fake_jobs import EchoJob

from specdec_plugins.decoding.controllers.simple import Confidence, Constant, NoDrafts
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.statistics import PHASES
from specdec_plugins.engines.writer import kernel
from specdec_plugins.evaluation import worker
from specdec_plugins.evaluation.translator_system import TranslatorJob
from specdec_plugins.evaluation.worker import Sentence, SystemProcess
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.lines import Line
from specdec_plugins.inference import Settings
from specdec_plugins.machine import python_program


@pytest.fixture(autouse=True)
def _tests_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[1]))


@pytest.mark.parametrize("policy", ["passive", "active"])
def test_a_process_has_what_it_needs_alone(
    policy: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Waiting may be chosen otherwise."""
    if policy == "active":
        monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    with closing(SystemProcess("echo", EchoJob(), threads=3)) as process:
        process.load()
        for batches in (2, 5):
            decoded = process.decode(batches, 1)
            heavy, environment, asked = decoded.outputs
            assert heavy == []
            assert environment == ["OMP_NUM_THREADS=3", f"OMP_WAIT_POLICY={policy}"]
            assert asked == [str(batches)]
        # Its own, not that of the process that started it.
        ours = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        assert 2**22 < decoded.figures["memory"] < ours / 2
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def test_failures_name_the_system() -> None:
    with (
        closing(SystemProcess("echo, 1 thread", EchoJob("loading"), threads=1)) as process,
        pytest.raises(InferenceError, match=r"^echo, 1 thread: --flag: cannot be"),
    ):
        process.load()
    with closing(SystemProcess("echo", EchoJob("decoding"), threads=1)) as process:
        process.load()
        for _ in range(2):
            with pytest.raises(InferenceError, match=r"echo: its process ended \(status 3\); if"):
                process.decode(1, 1)
    with pytest.raises(KeyError), closing(SystemProcess("echo", EchoJob(), threads=1)) as process:
        raise KeyError
    assert process._process.returncode == -9


def test_a_worker_whose_other_end_is_gone_ends_quietly() -> None:
    code = (
        "import os, sys; from multiprocessing import Pipe; "
        "from specdec_plugins.evaluation import worker; "
        "ours, theirs = Pipe(); ours.close(); "
        "sys.argv = ['', str(os.dup(theirs.fileno()))]; worker.main()"
    )
    root = Path(worker.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True, cwd=root
    )
    assert done.stdout == done.stderr == ""


def test_ours_in_its_process_says_what_it_says_here(trained: Trained) -> None:
    given: Any = {"path": str(trained.drafter), "ar_path": str(trained.verifier), "batch": 4}
    given |= {"source_lang": "en", "target_lang": "de", "engine": "eager"}
    settings = Settings(str(trained.data), **given, controller=Constant())
    lines = [Line(number, text) for number, text in enumerate(trained.source[:8], start=1)]
    sentences = [Sentence(line, [], 0) for line in lines]
    batches = [sentences[:4], sentences[4:]]
    here = TranslatorJob(settings, batches)
    here.load()
    with closing(SystemProcess("ours", TranslatorJob(settings, batches), 1)) as process:
        process.load()
        assert len(process.decode(1, 1).outputs) == 4
        found = process.decode(2, 1)
    expected = here.decode(2, 1)
    assert found.outputs == expected.outputs == trained.translate(limits=settings.limits)[:8]
    counts = found.figures["counts"]
    assert counts == expected.figures["counts"]
    assert counts["committed_tokens"] > counts["steps"]
    assert found.seconds > 0


@pytest.mark.parametrize("prefix", [None, "w1 w2"])
def test_figures_of_sentences_make_up_the_counts(prefix: str | None, tmp_path: Path) -> None:
    """Forced tokens take a pass of the verifier, and are not generated."""
    pair, limits = save_pair(tmp_path), GenerationLimits(max_len_b=9)
    settings = Settings.of_model(pair, engine="eager", batch=2, target_prefix=prefix, limits=limits)
    lines = [Line(number, text) for number, text in enumerate(("w3 w4 w5", "w7 w8", "w1"), 1)]
    batches = [[Sentence(line, [], 0) for line in part] for part in (lines[:2], lines[2:])]
    cutting = Confidence(confidence_threshold=1.0, min_draft=1)
    for controller in (Constant(), cutting, NoDrafts()):
        job = TranslatorJob(replace(settings, controller=controller), batches)
        job.load()
        decoded = job.decode(2, 1)
        counts, sentences = decoded.figures["counts"], decoded.sentences
        assert sum(figures.length for figures in sentences) == counts["committed_tokens"]
        assert len({figures.seconds for figures in sentences}) == 2
        calls = [figures.calls for figures in sentences]
        if controller.drafts:
            assert sum(calls) == counts["verifier_calls"]
            assert (counts["verified_tokens"] < counts["drafted_tokens"]) is (controller is cutting)
            wasted = counts["verified_tokens"] - counts["accepted_tokens"]
            assert sum(figures.mismatched for figures in sentences) == wasted
            assert sum(sum(item.verified) for item in sentences) == counts["verified_tokens"]
        else:
            assert calls == [None] * 3
            assert not {"drafted_tokens", "verified_tokens", "accepted_tokens"} & counts.keys()


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"controller": Constant()}, {*PHASES, "other"}),
        ({"strategy": "AR"}, {*PHASES, "other"}),
        pytest.param(
            {"strategy": "AR", "precision": "int8", "engine": "auto"},
            {"encode", "verify", "other"},
            marks=pytest.mark.skipif(
                kernel.FAMILY is None, reason="the processor has none of the writer's instructions"
            ),
        ),
        ({"strategy": "fairseq"}, set()),
    ],
    ids=["drafts", "no drafts", "writer", "stock"],
)
def test_parts_make_up_a_runs_time(changes: Any, parts: set[str], tmp_path: Path) -> None:
    """Of the writer's, too; stock fairseq tells none."""
    settings = Settings.of_model(save_pair(tmp_path), **{"engine": "eager", **changes})
    job = TranslatorJob(settings, [[Sentence(Line(1, "w3 w4 w5"), [], 0)]])
    job.load()
    decoded = job.decode(1, 1)
    found = decoded.figures.get("parts", {})
    assert sum(found.values()) == pytest.approx(decoded.seconds if parts else 0)
    assert {name for name, seconds in found.items() if seconds > 0} == parts


def test_a_process_has_nothing_in_it_that_only_other_tasks_need() -> None:
    code = "import sys, specdec_plugins.evaluation.translator_system as system; "
    subprocess.run(python_program(code + "sys.exit('sklearn' in sys.modules)"), check=True)
