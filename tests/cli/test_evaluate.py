"""``specdec-evaluate`` from the command line: systems, results, and what cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from drafters import save_pair

from specdec_plugins.cli import evaluate as script
from specdec_plugins.evaluation.experiment import read_runs

TEXT = "w3 w4 w5 w6\n\nw7\nw1 w2 w3 w4 w5 w6 w7\nw11 w12\n"
Evaluate = Callable[..., int]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_pair(tmp_path_factory.mktemp("world"))
    (folder / "in.txt").write_text(TEXT)
    (folder / "other.txt").write_text("w9 w9 w8\nw2\n")
    (folder / "in.ref").write_text("w1 w2 w3 w4\n\nw5\nw6\nw7\n")
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def run(world: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> Evaluate:
    """``run(flag, ...)``; flags given replace the usual ones."""

    def evaluate(*flags: str) -> int:
        models = ["--path", str(world / "drafter.pt"), "--AR-path", str(world / "verifier.pt")]
        usual = ["--input-path", "in.txt", "--output-path", str(out), "--max-len-b", "9", "--cpu"]
        usual += ["--warmup", "1", "--rounds", "2", "--engine", "eager", "--no-plots"]
        return script.main([str(world), *models, *usual, *flags])

    monkeypatch.chdir(world)
    return evaluate


def test_systems_are_compared(run: Evaluate, out: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """In float64 strict output is the verifier's own under every controller."""
    systems = ["fairseq@beam=1,precision=float64", "AR", "drafter", "constant", "oracle"]
    systems += ["tree@tree_nodes=9", "heuristic@initial_draft=2"]
    flags = ["--fp64", "--batch", "3", "--reference", "in.ref", "--systems", *systems]
    assert run(*flags) == 0
    printed = capfd.readouterr().out
    assert printed == (out / "table.md").read_text()
    assert printed.startswith("    evaluate.py ")
    runs = read_runs(out / "runs.jsonl")
    made = sorted((run.system, run.round) for run in runs)
    assert made == sorted((system, number) for system in systems for number in (1, 2))
    first = {run.system: run for run in runs if run.round == 1}
    outputs = {system: run.sentences["output"] for system, run in first.items()}
    assert {system for system in systems if outputs[system] != outputs["AR"]} <= {"drafter"}
    assert first["oracle"].figures()["verified_discard_rate"] == 0
    records = [json.loads(line) for line in (out / "sentences.jsonl").read_text().splitlines()]
    assert [r["id"] for r in records if r["system"] == "AR"] == [0, 2, 3, 4]
    # The same command makes no run again, and compares with another system.
    assert run(*flags, "--baseline", "constant") == 0
    assert read_runs(out / "runs.jsonl") == runs
    assert "| x constant |" in capfd.readouterr().out
    assert run(*flags, "--input-path", "other.txt", "--reference", "other.txt") == 1
    assert "was begun with other texts" in capfd.readouterr().err


def test_drawn_output(run: Evaluate, out: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A round is a seed, and outputs are not compared with AR's."""
    flags = ["--sampling", "--temperature", "0.7", "--systems", "AR", "tree"]
    assert run(*flags, "--input-path", "in.txt", "other.txt") == 0
    outputs = [r.sentences["output"] for r in read_runs(out / "runs.jsonl") if r.system == "AR"]
    assert len(outputs) == 4
    assert outputs[0] != outputs[1]
    assert "unlike AR |" not in capfd.readouterr().out


def test_ctranslate2_beside_us(run: Evaluate, out: Path) -> None:
    pytest.importorskip("ctranslate2", reason="CTranslate2, of the extra [bench], is not here")
    assert run("--systems", "ctranslate2@float32", "AR") == 0
    runs = [run for run in read_runs(out / "runs.jsonl") if run.round == 1]
    outputs = {run.system: run.sentences["output"] for run in runs}
    # Made-up verifiers prefer the padding symbol at times, which it does not ban.
    assert [len(output) for output in outputs.values()] == [4, 4]


@pytest.mark.parametrize(
    "flags",
    [
        ["--systems", "beam"],
        ["--batch", "0"],
        ["--rounds", "0"],
        ["--lines", "0"],
        ["--reference", "in.ref", "in.ref"],
        ["--baseline", "oracle"],
        ["--AR-path", "drafter.pt"],
    ],
)
def test_a_flag_that_cannot_be(
    run: Evaluate, out: Path, flags: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    try:
        status = run(*flags)
    except SystemExit as stop:
        status = int(stop.code or 0)
    assert status in (1, 2)
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith("evaluate.py: ")
    assert not out.exists()
