"""``specdec-evaluate`` from the command line: systems, results, and bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers.models.drafters import save_pair
from helpers.runs.kills import ForkedPython

from specdec_plugins.cli import evaluate as script
from specdec_plugins.evaluation import worker
from specdec_plugins.evaluation.experiment import Run, read_runs
from specdec_plugins.inference import backends

Evaluate = Callable[..., int]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_pair(tmp_path_factory.mktemp("world"))
    (folder / "in.txt").write_text("w3 w4 w5 w6\n\nw7\nw1 w2 w3 w4 w5 w6 w7\nw11 w12\n")
    (folder / "other.txt").write_text("w9 w9 w8\nw2\n")
    (folder / "in.ref").write_text("w1 w2 w3 w4\n\nw5\nw6\nw7\n")
    return folder


@pytest.fixture
def run(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Evaluate:
    """``run(flags)``, which replace the usual ones, in the folder of the pair."""
    monkeypatch.chdir(world)
    monkeypatch.setattr(worker.subprocess, "Popen", ForkedPython)

    def evaluate(flags: str) -> int:
        usual = f". --output-path {tmp_path}/out --cpu"
        usual += " --input-path in.txt --max-len-b 9 --warmup 1 --rounds 2 --engine eager"
        try:
            return script.main(f"{usual} --no-plots {flags}".split())
        except SystemExit as stop:
            return int(stop.code or 0)

    return evaluate


def test_systems_are_compared(
    run: Evaluate, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """In float64 strict output is the verifier's own."""
    out = tmp_path / "out"
    systems = ["fairseq@beam=1,precision=float64", "AR", "drafter", "tree@tree_nodes=9"]
    systems.append("beam@beam=2")
    flags = f"--fp64 --batch 3 --reference in.ref --systems {' '.join(systems)}"
    assert run(flags) == 0
    shown = capfd.readouterr().out
    assert f"{out}/table.md" in shown
    assert max(line.count("|") for line in shown.splitlines()) == 6  # five columns
    runs = read_runs(out / "runs.jsonl")
    made = sorted((run.system, run.round) for run in runs)
    assert made == sorted((system, number) for system in systems for number in (1, 2))
    outputs = {run.system: run.outputs for run in runs if run.round == 1}
    assert {system for system in systems if outputs[system] != outputs["AR"]} <= {
        "drafter",
        "beam@beam=2",
    }
    check_records(out, {run.system: run for run in runs if run.round == 1})
    # The same command makes no run again, and compares with another system; after a kill or with
    # more rounds it makes those that lack.
    assert run(f"{flags} --baseline drafter") == 0
    assert read_runs(out / "runs.jsonl") == runs
    assert "| times drafter |" in capfd.readouterr().out
    with (out / "runs.jsonl").open("ab") as file:
        file.write(b'{"system": "tr')
    assert run(f"{flags} --rounds 3") == 0
    more = read_runs(out / "runs.jsonl")
    assert more[: len(runs)] == runs
    assert sorted((run.system, run.round) for run in more[len(runs) :]) == sorted(
        (system, 3) for system in systems
    )
    assert run(f"{flags} --input-path other.txt --reference other.txt") == 1
    assert read_runs(out / "runs.jsonl") == more


def check_records(folder: Path, runs: dict[str, Run]) -> None:
    """Each sentence's record belongs to its line, and all of them make up the run's counts."""
    records = list(map(json.loads, (folder / "sentences.jsonl").read_text("utf-8").splitlines()))
    for system, run in runs.items():
        mine = [record for record in records if record["system"] == system]
        assert [record["id"] for record in mine] == [0, 2, 3, 4]
        lengths = [record["generated_length"] for record in mine]
        assert lengths == [len(output.split()) + 1 for output in run.outputs]
        if system.startswith("tree"):
            calls = sum(record["num_LM_call"] for record in mine)
            assert calls == run.counts["verifier_calls"]
            wasted = sum(record["num_mismatched_tokens"] for record in mine)
            assert wasted == run.counts["verified_tokens"] - run.counts["accepted_tokens"] > 0
            assert all(0 < r["spec_time"] < 60 > r["target_time"] > 0 for r in mine)
    medians = json.loads((folder / "medians.json").read_text("utf-8"))
    assert {item["system"] for item in medians} == set(runs)
    assert all(item["milliseconds"] > 0 for item in medians)


def test_drawn_output(run: Evaluate, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A round is a seed, and outputs are not compared with AR's."""
    assert run("--sampling --temperature 0.7 --systems AR") == 0
    first, second = (r.outputs for r in read_runs(tmp_path / "out/runs.jsonl"))
    assert first != second
    assert "unlike AR |" not in capfd.readouterr().out


def test_drawn_output_beside_fairseqs(run: Evaluate, tmp_path: Path) -> None:
    """By the token, since its length is drawn, too; with plots."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra [plot])")
    path = tmp_path / "other"
    systems = "--sampling --systems fairseq@beam=1 AR"
    argv = f". --output-path {path} --cpu --input-path in.txt --rounds 2 --warmup 0 --quiet"
    assert script.main(f"{argv} --engine eager --max-len-b 9 {systems}".split()) == 0
    rows = [row for row in (path / "table.md").read_text("utf-8").splitlines() if "| 1.00 (" in row]
    assert len(rows) == 1
    assert (path / "speed.svg").exists()
    runs = read_runs(path / "runs.jsonl")
    assert all(run.figures()["tokens_per_second"] > 0 for run in runs)


def test_ctranslate2_beside_us(run: Evaluate, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2", reason="CTranslate2, of the extra [bench], is not here")
    assert run("--systems ctranslate2@float32 --rounds 1") == 0
    (done,) = read_runs(tmp_path / "out/runs.jsonl")
    assert len(done.outputs) == 4
    assert run("--systems ctranslate2 --repetition-penalty 2") in (1, 2)
    beams = f"--beam 2 --systems ctranslate2 tree --rounds 1 --output-path {tmp_path}/beams"
    assert run(beams) == 0
    assert run(f"--systems ctranslate2 --split-sentences --output-path {tmp_path}/split") == 2


def test_a_model_that_ctranslate2_computes_otherwise_is_not_timed(
    run: Evaluate,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("ctranslate2", reason="CTranslate2, of the extra [bench], is not here")
    monkeypatch.setattr(backends, "TOLERATED", 0.0)
    monkeypatch.setattr(torch, "allclose", lambda *_, atol, **__: atol > 0)
    assert run("--systems ctranslate2") == 1
    assert "CTranslate2 computes other scores with this verifier" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_text_without_words(run: Evaluate, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("<pad>\n")
    assert run(f"--input-path {tmp_path}/in.txt") == 1


@pytest.mark.parametrize(
    "flags",
    [
        "--systems beams",
        "--batch 0",
        "--rounds 0",
        "--lines 0",
        "--reference in.ref in.ref",
        "--baseline oracle",
        "--AR-path drafter.pt",
        "--strategy AR",
        "--controller tree",
        "--warmup -1",
        "--input-path in.txt in.txt",
    ],
)
def test_bad_input(run: Evaluate, tmp_path: Path, flags: str) -> None:
    assert run(flags) in (1, 2)
    assert not (tmp_path / "out").exists()
