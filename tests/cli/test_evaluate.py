"""``scripts/evaluate.py``: a sweep from the command line, interrupted, resumed, and refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import need_bfloat16
from drafters import save_pair
from models.test_acceptance_head import make_head

from specdec_plugins.checkpoints.head_file import save_head
from specdec_plugins.cli import evaluate as script
from specdec_plugins.evaluation import experiment
from specdec_plugins.evaluation.folder import RunFolder, read_runs
from specdec_plugins.evaluation.runs import Run
from specdec_plugins.inference import Settings, load_translator
from specdec_plugins.models.acceptance_head import fingerprint

TEXT = "w3 w4 w5 w6\n\nw7\nw1 w2 w3 w4 w5 w6 w7\nw11 w12\n"
SMALL = ["--controller", "constant", "--constant-k", "2", "--repeats", "2"]
SYSTEMS = ["AR", "drafter", "constant k 2"]
Evaluate = Callable[..., int]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair with an acceptance head beside it, and its drafter once more without one."""
    folder = save_pair(tmp_path_factory.mktemp("world"))
    settings = Settings(
        data=str(folder), path=str(folder / "drafter.pt"), ar_path=str(folder / "verifier.pt")
    )
    generator: Any = load_translator(settings).generator
    head = make_head(drafter=fingerprint(generator.drafter), bias=-1.0)
    save_head(folder / "acceptance_head.pt", head)
    (folder / "alone").mkdir()
    (folder / "alone" / "drafter.pt").symlink_to(folder / "drafter.pt")
    (folder / "in.txt").write_text(TEXT)
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def run(world: Path, out: Path) -> Evaluate:
    """``run(flag, …)`` in this process; flags given replace the usual ones."""

    def run_script(*flags: str, **usual: str | None) -> int:
        given = {
            "--path": str(world / "drafter.pt"),
            "--AR-path": str(world / "verifier.pt"),
            "--input-path": str(world / "in.txt"),
            "--output-path": str(out),
            "--max-len-b": "9",
            "--warmup": "1",
            **{f"--{name.replace('_', '-')}": value for name, value in usual.items()},
        }
        pairs = (word for pair in given.items() if pair[1] is not None for word in pair)
        try:
            return int(script.main([str(world), "--cpu", *pairs, "--no-plots", *flags]))  # type: ignore[list-item]
        except SystemExit as stop:
            return int(stop.code or 0)

    return run_script


def made(out: Path) -> list[tuple[str, int, int]]:
    """System, batch size and round of every run, in the order in which they were made."""
    runs = read_runs(out / "runs.jsonl")
    return [(run.system.rpartition(",")[0], run.batch, run.round) for run in runs]


def one_error(capfd: pytest.CaptureFixture[str]) -> str:
    """The only line of standard error."""
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("evaluate.py: ")
    return line


@pytest.mark.slow
def test_drafts_in_a_precision_of_their_own(run: Evaluate, out: Path) -> None:
    """AR is of the same group: it is what the others are compared with."""
    need_bfloat16()
    flags = ("--engine", "openvino", "--drafter-precision", "bfloat16", "--controller", "tree")
    assert run(*flags, "--repeats", "1", "--tree-nodes", "3") == 0
    (group,) = json.loads((out / "summary.json").read_text())["groups"]
    said = "cpu, openvino, float32, bfloat16 drafts, 1 thread, batch 1, strict"
    assert group["conditions"] == said
    _, _, tree = group["systems"]
    assert (tree["lines_unlike_AR"], tree["sentences"]) == (0, 4)
    assert tree["speed_over_baseline"]["rounds"] == 1


def test_all_controllers(run: Evaluate, out: Path, capfd: pytest.CaptureFixture[str]) -> None:
    flags = ["--confidence-threshold", "0.1", "0.6", "--stop-threshold", "0.9", "--repeats", "3"]
    flags += ["--tree-nodes", "9"]
    assert run(*flags, "--batch", "3", "--fp64") == 0
    printed = capfd.readouterr().out
    assert printed == (out / "table.md").read_text()
    summary = json.loads((out / "summary.json").read_text())
    made = [json.loads(line)["began"] for line in (out / "runs.jsonl").read_text().splitlines()]
    assert summary["machine"]["first_run"] == min(made)
    assert summary["machine"]["last_run"] == max(made)
    assert {"verifier", "drafter"} <= set(summary["models"])
    names = [
        *("AR", "drafter", "constant k 1", "constant k 2", "constant k 3", "constant k 4"),
        *("heuristic k 4", "confidence 0.1 k 4", "confidence 0.6 k 4"),
        *("acceptance-head 0.9 k 4", "tree 9 k 4", "oracle k 4"),
    ]
    (group,) = summary["groups"]
    assert group["conditions"] == "cpu, eager, float64, 1 thread, batch 3, strict"
    assert [system["system"] for system in group["systems"]] == names
    for system in group["systems"]:
        # In float64 strict output is the verifier's own under every controller.
        assert system["lines_unlike_AR"] == 0 or system["system"] == "drafter"
        assert system["tokens_per_second"]["rounds"] == 3
        assert system["sentences"] == 4
    oracle = group["systems"][-1]
    assert oracle["verified_discard_rate"] == 0
    assert not oracle["real_decoder"]
    assert len(group["acceptance_head_against_constant"]) == 1
    assert len(list((out / "sentences").iterdir())) == len(names)
    path = out / "sentences" / "acceptance-head-0.9-k-4.cpu-batch3.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [record["id"] for record in records] == [0, 2, 3, 4]
    assert all(0 < record["target_time"] < 60 and record["draft_time"] > 0 for record in records)
    assert {record["rounds"] for record in records} == {3}


def test_resuming_repeats_nothing(
    run: Evaluate, out: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    add = RunFolder.add

    def interrupt(self: RunFolder, made_run: Run) -> None:
        if len(self.runs) == 4:
            raise KeyboardInterrupt
        add(self, made_run)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "add", interrupt)
        assert run("--no-progress-bar", *SMALL) == 130  # slow, it would tell that it goes on
    assert "finished runs are kept" in one_error(capfd)
    before = [(name, number) for name, _, number in made(out)]
    assert [number for _, number in before] == [1, 1, 1, 2]
    rest = {(name, 2) for name in SYSTEMS} - set(before)
    kept = (out / "runs.jsonl").read_bytes()
    timed: list[tuple[str, int]] = []
    timed_run = experiment.timed_run

    def counted(system: Any, worker: Any, one: Any) -> Run:
        timed.append((system.name, one.number))
        return timed_run(system, worker, one)

    monkeypatch.setattr(experiment, "timed_run", counted)
    assert run(*SMALL) == 0
    assert len(timed) == 2
    assert set(timed) == rest
    assert (out / "runs.jsonl").read_bytes().startswith(kept)
    assert [(name, number) for name, _, number in made(out)] == before + timed
    # A complete one makes its outputs anew, over another baseline, and more may be asked for.
    assert "x AR |" in (out / "table.md").read_text()
    assert run(*SMALL, "--baseline", "constant k 2") == 0
    assert len(timed) == 2
    assert "x constant k 2 |" in (out / "table.md").read_text()
    assert run(*SMALL[:-1], "3", "--batch", "1", "4") == 0
    assert sorted(made(out)) == sorted(
        (name, batch, number) for name in SYSTEMS for batch in (1, 4) for number in (1, 2, 3)
    )


def test_a_pair_needs_no_paths(world: Path, out: Path, tmp_path: Path) -> None:
    pair = tmp_path / "pair"
    pair.mkdir()
    for name in ("dict.en.txt", "dict.de.txt", "drafter.pt", "verifier.pt"):
        (pair / name).symlink_to(world / name)
    (pair / "codes").write_text("#version: 0.2\nw 1</w>\n")
    files = ["--input-path", str(world / "in.txt"), "--output-path", str(out)]
    flags = [*files, "--max-len-b", "9", "--cpu", "--no-plots", "--warmup", "0"]
    assert script.main([str(pair), *SMALL, *flags]) == 0
    assert len(made(out)) == 6


def test_sampled(run: Evaluate, out: Path, world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """SpecDec++'s experiments, without the drafter alone; more seeds are added."""
    flags = ["--sampling", "--temperature", "0.7", "--constant-k", "2", "--tree-nodes", "5"]
    flags += ["--confidence-threshold", "0.3", "--batch", "2"]
    path = str(world / "alone" / "drafter.pt")
    assert run(*flags, "--seed", "8", path=path) == 0
    assert run(*flags, "--seed", "8", "3", path=path) == 0
    names = ["AR", "constant k 2", "heuristic k 4", "confidence 0.3 k 4", "tree 5 k 4"]
    assert sorted(made(out)) == sorted((name, 2, seed) for name in names for seed in (8, 3))
    printed = capfd.readouterr().out
    assert "sampling at temperature 0.7" in printed
    assert "unlike AR |" not in printed
    (group,) = json.loads((out / "summary.json").read_text())["groups"]
    for system in group["systems"]:
        assert (system["seeds"], system["lines_unlike_AR"]) == ([3, 8], None)
    text = (out / "sentences" / "confidence-0.3-k-4.cpu-batch2.jsonl").read_text()
    records = [json.loads(line) for line in text.splitlines()]
    assert [(r["seed"], r["id"]) for r in records] == [(n, i) for n in (3, 8) for i in (0, 2, 3, 4)]


def test_several_texts(
    run: Evaluate, out: Path, world: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One table across them; stopped between them, it goes on."""
    (tmp_path / "far.txt").write_text("w9 w9 w8\nw2\n")
    (tmp_path / "far.ref").write_text("w1 w2 w3 w4\nw5\n")
    (tmp_path / "in.ref").write_text("w1 w2 w3 w4\n\nw5\nw6\nw7\n")
    given: dict[str, Any] = {"input_path": None}
    flags = [*SMALL, "--input-path", str(world / "in.txt"), str(tmp_path / "far.txt")]
    flags += ["--reference", str(tmp_path / "in.ref"), str(tmp_path / "far.ref")]
    assert run(*flags, **given) == 0
    capfd.readouterr()
    runs = out / "runs.jsonl"
    runs.write_bytes(b"".join(runs.read_bytes().splitlines(keepends=True)[:8]))
    assert run(*flags, **given) == 0
    found = read_runs(runs)
    names = [(one.text, one.system, one.round) for one in found]
    assert len(names) == len(set(names)) == 12
    printed = capfd.readouterr().out
    assert printed.startswith("### All: cpu")
    assert "| x AR, in | x AR, far |" in printed
    assert "| text | BLEU of AR |" in printed
    groups = json.loads((out / "summary.json").read_text())["groups"]
    assert [group["systems"][0]["text"] for group in groups] == ["in", "far"]
    assert [group["systems"][0]["sentences"] for group in groups] == [4, 2]
    assert (out / "sentences" / "AR.cpu-batch1-far.jsonl").exists()
    assert run(*flags, "--text-name", "in", "other", **given) == 1
    assert "was begun with other texts.far" in one_error(capfd)


@pytest.mark.parametrize(
    ("flags", "status", "message"),
    [
        (["--text-name", "a"], 2, "--text-name: 1 for 2 files of --input-path"),
        (["--text-name", "a", "a"], 2, "--text-name a: is of several texts"),
        (["--text-name", "a", "b/c"], 2, "--text-name 'b/c': must be of letters"),
        (["--reference", "in.txt"], 2, "--reference: 1 for 2 files of --input-path"),
        (["--reference", "in.txt", "dict.en.txt"], 1, "--reference dict.en.txt: has 20 lines"),
    ],
)
def test_texts_that_cannot_be(
    run: Evaluate,
    out: Path,
    world: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    status: int,
    message: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(world)
    (world / "other.txt").write_text(TEXT)
    given: dict[str, Any] = {"input_path": None}
    assert run(*SMALL, "--input-path", "in.txt", "other.txt", *flags, **given) == status
    assert message in one_error(capfd)
    assert not out.exists()


def test_another_sweep_is_refused(
    run: Evaluate, out: Path, world: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(*SMALL) == 0
    kept = {p.name: p.read_bytes() for p in out.iterdir() if p.is_file()}
    capfd.readouterr()
    (tmp_path / "other.txt").write_text("w1 w2\n")
    for changes, message in (
        ({"input_path": str(tmp_path / "other.txt")}, "other text"),
        ({"max_len_b": "8"}, "other settings.limits.max_len_b"),
        ({"beta": "3", "tau": "1"}, "other systems.constant k 2, 1 thread.rule.beta"),
        ({"constant_k": "3"}, "other systems.constant k 2"),
        ({"warmup": "2"}, "other warmup"),
        ({"AR_path": str(world / "drafter.pt")}, "verifier"),
    ):
        given: dict[str, Any] = changes
        assert run(*SMALL[:2], *SMALL[4:], **{"constant_k": "2", **given}) == 1
        assert message in one_error(capfd)
        assert {p.name: p.read_bytes() for p in out.iterdir() if p.is_file()} == kept
    assert run(*SMALL, "--stop-threshold", "2") == 2
    assert run("--controller", "acceptance-head", acceptance_head="missing.pt") == 1
    assert {p.name: p.read_bytes() for p in out.iterdir() if p.is_file()} == kept


BAD = [
    (["--stop-threshold", "0.5", "1.5"], "--stop-threshold 1.5: must be between 0 and 1"),
    (["--controller", "none"], "--controller: invalid choice: 'none'"),
    (["--batch", "2", "0"], "--batch 0: must be at least 1"),
    (["--repeats", "0"], "--repeats 0: must be at least 1"),
    (["--warmup", "-1"], "--warmup -1: must be 0 or more"),
    (["--threads", "0"], "--threads 0: must be at least 1"),
    (["--lines", "0"], "--lines 0: must be at least 1"),
    (["--strategy", "AR"], "--strategy AR: choose with --controller, or compare by"),
    (["--sampling", "--repeats", "2"], "--repeats 2: with --sampling there is a round for each"),
    (["--sampling", "--seed", "1", "-2"], "--seed 1 -2: must be 0 or more"),
    (["--seed", "1", "2"], "--seed 1 2: several are for --sampling"),
    (["--device", "cpu", "cuda"], "--device cpu cuda: was taken away"),
    (["--device", "cuda"], "--device cuda: was taken away; a GPU is used if there is one"),
    (["--trace"], "--trace: was taken away; specdec-translate --trace records steps"),
]


@pytest.mark.parametrize(("flags", "message"), BAD, ids=lambda value: " ".join(value[:3]))
def test_a_flag_that_cannot_be(
    run: Evaluate, out: Path, flags: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(*flags) == 2
    assert message in one_error(capfd)
    assert not (out / "runs.jsonl").exists()


def test_files_are_json_where_an_option_is_infinite(run: Evaluate, out: Path) -> None:
    few = ("--lines", "1", "--repeats", "1", "--constant-k", "2")
    assert run("--controller", "tree", "--redraft-below", "inf", *few) == 0

    def refuse(name: str) -> None:
        raise AssertionError(name)

    assert {one.sentences for one in read_runs(out / "runs.jsonl")} == {1}
    for path in (out / "summary.json", *(out / "sentences").iterdir()):
        for text in path.read_text().splitlines() if path.parent != out else [path.read_text()]:
            json.loads(text, parse_constant=refuse)
    assert '"redraft_below": "inf"' in (out / "summary.json").read_text()


def test_half_of_relaxed_acceptance(caplog: pytest.LogCaptureFixture) -> None:
    script.parse(["data", "--input-path", "x", "--output-path", "y", "--tau", "3"])
    assert "these flags do nothing here: --tau" in caplog.text


@pytest.mark.parametrize(
    ("changes", "status", "message"),
    [
        ({"path": None}, 2, "--path: give the drafter's checkpoint"),
        ({"AR_path": "missing.pt"}, 1, "missing.pt"),
        ({"acceptance_head": "missing.pt"}, 1, "missing.pt"),
        ({"input_path": "/dev/null"}, 1, "--input-path /dev/null: holds no sentence"),
        ({"output_path": "/dev/null"}, 1, "--output-path /dev/null: cannot be written to"),
        ({"output_path": None}, 2, "--output-path"),
        ({"beta": "3", "tau": "1"}, 1, "trained for strict acceptance, not relaxed"),
    ],
)
def test_a_file_that_cannot_be(
    run: Evaluate,
    out: Path,
    changes: dict[str, str | None],
    status: int,
    message: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert run("--repeats", "1", **changes) == status
    assert message in one_error(capfd)
    assert not (out / "runs.jsonl").exists()


def test_without_a_head_its_controller_is_left_out(
    run: Evaluate,
    out: Path,
    world: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    path = str(world / "alone" / "drafter.pt")
    few = ("--repeats", "1", "--confidence-threshold", "0.5", "--lines", "1")
    assert run(*few, path=path) == 0
    assert "acceptance-head left out" in caplog.text
    assert not any(name.startswith("acceptance-head") for name, _, _ in made(out))
    capfd.readouterr()
    # Whoever asks for it is told.
    other = str(out.with_name("other"))
    assert run("--controller", "acceptance-head", path=path, output_path=other) == 2
    assert "there is no acceptance head beside the drafter" in one_error(capfd)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_on_standard_output(
    run: Evaluate, out: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        assert run(*SMALL) == 1
    assert "standard output: cannot be written to (No space left on device)" in one_error(capfd)
    assert len(made(out)) == 6
    assert (out / "table.md").exists()


def test_pictures_are_drawn(
    world: Path, out: Path, run: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib, of the extra [plot], is not here")
    main = script.main
    monkeypatch.setattr(
        script, "main", lambda argv: main([word for word in argv if word != "--no-plots"])
    )
    assert run(*SMALL) == 0
    for kind in ("pareto", "speed"):
        png = (out / f"{kind}-cpu-batch1.png").read_bytes()
        assert png.startswith(b"\x89PNG")
        assert len(png) > 10_000
        assert b"</svg>" in (out / f"{kind}-cpu-batch1.svg").read_bytes()
