"""``scripts/benchmark.py``: from the command line, interrupted, resumed, and refused."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest
from drafters import save_pair

from specdec_plugins.cli import benchmark as script
from specdec_plugins.decoding.acceptance import RelaxedRule, StrictRule
from specdec_plugins.evaluation import ctranslate2_system, experiment, plots
from specdec_plugins.evaluation.worker import Job
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.inference.report import versions

TEXT = "w3 w4 w5 w6\n\nw7\nw1 w2 w3 w4 w5 w6 w7\nw11 w12\n"
SMALL = ["--ctranslate2", "--beam", "1", "--precision", "float64", "--rule", "strict"]
SMALL += ["--threads", "1", "--batch", "1"]
NAMES = ["fairseq beam 1", "AR float64", "strict tree float64"]
Run = Callable[..., int]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_pair(tmp_path_factory.mktemp("world"))
    (folder / "in.txt").write_text(TEXT)
    (folder / "reference.txt").write_text(TEXT)
    (folder / "short.txt").write_text("w3\n")
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def in_this_process(name: str, job: Job, threads: int) -> nullcontext[Job]:
    return nullcontext(job)


@pytest.fixture
def run(world: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """``run(flag, …)`` in this process, that of all systems too."""
    monkeypatch.setattr(experiment, "SystemProcess", in_this_process)

    def run_script(*flags: str, **usual: str | None) -> int:
        given = {
            "--path": str(world / "drafter.pt"),
            "--AR-path": str(world / "verifier.pt"),
            "--source": str(world / "in.txt"),
            "--output-path": str(out),
            "--max-len-b": "9",
            "--repeats": "2",
            **{f"--{name.replace('_', '-')}": value for name, value in usual.items()},
        }
        pairs = (word for pair in given.items() if pair[1] is not None for word in pair)
        try:
            return int(script.main([str(world), *pairs, "--no-plots", *flags]))  # type: ignore[list-item]
        except SystemExit as stop:
            return int(stop.code or 0)

    return run_script


def made(out: Path) -> list[tuple[str, int, int]]:
    """System, batch size and round of every run, in the order in which they were made."""
    records = [json.loads(line) for line in (out / "runs.jsonl").read_text().splitlines()]
    return [(r["system"].removesuffix(", 1 thread"), r["batch"], r["round"]) for r in records]


def one_error(capfd: pytest.CaptureFixture[str]) -> str:
    """The only line of standard error."""
    captured = capfd.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("benchmark.py: ")
    return line


def test_all_systems(run: Run, world: Path, out: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ctranslate2", reason="CTranslate2, of the extra [bench], is not here")
    flags = ["--batch", "3", "--threads", "1", "--ctranslate2", "float32", "int8"]
    assert run(*flags, reference=str(world / "reference.txt"), repeats="1") == 0
    printed = capfd.readouterr().out
    assert printed == (out / "table.md").read_text()
    summary = json.loads((out / "summary.json").read_text())
    (group,) = summary["groups"]
    found = {system["system"]: system for system in group["systems"]}
    assert list(found) == [
        *("fairseq beam 5", "fairseq beam 1", "CTranslate2 float32", "CTranslate2 int8"),
        *("AR float32", "AR bfloat16", "strict tree float32", "strict tree bfloat16"),
        *("relaxed tree float32", "relaxed tree bfloat16"),
    ]
    assert summary["baseline"] == "CTranslate2 float32"
    assert summary["bleu_signature"].startswith("nrefs:1|")
    assert summary["texts"][""]["lines"] == 4
    assert set(summary["machine"]["versions"]) == {*versions(), "ctranslate2"}
    assert {"verifier", "drafter"} <= set(summary["models"])
    assert summary["machine"]["cores"] >= 1
    assert summary["command"].startswith("benchmark.py ")
    for name in ("fairseq beam 1", "AR float32", "strict tree float32"):
        assert found[name]["lines_unlike_AR"] == 0
        assert found[name]["speed_over_baseline"]["rounds"] == 1
        assert found[name]["bleu"] is not None
    assert found["strict tree float32"]["acceptance_length"] > 1
    assert found["strict tree float32"]["k"] == 4
    assert found["AR float32"]["acceptance_length"] == 1
    assert found["fairseq beam 1"]["acceptance_length"] is None
    assert (found["relaxed tree float32"]["beta"], found["relaxed tree float32"]["tau"]) == (3, 1.0)


def test_several_relaxed_rules(run: Run, out: Path) -> None:
    rules = ["strict", "relaxed", "relaxed:3:1.0", "relaxed:5:.5"]
    flags = ["--ctranslate2", "--beam", "--precision", "float64", "--batch", "1"]
    assert run(*flags, "--threads", "1", "--rule", *rules) == 0
    (group,) = json.loads((out / "summary.json").read_text())["groups"]
    found = {one["system"]: (one.get("beta"), one.get("tau")) for one in group["systems"]}
    assert found == {
        "AR float64": (None, None),
        "strict tree float64": (1, 0.0),
        "relaxed 3 1.0 tree float64": (3, 1.0),
        "relaxed 5 0.5 tree float64": (5, 0.5),
    }


def test_a_verifier_that_ctranslate2_cannot_take(
    run: Run, out: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Goes on without it, and says so beside the results."""
    pytest.importorskip("ctranslate2", reason="CTranslate2, of the extra [bench], is not here")

    def refuse(*_: object) -> None:
        raise InferenceError("CTranslate2 cannot take this verifier (a reason)")

    monkeypatch.setattr(script, "convert_verifier", refuse)
    assert run(*SMALL, "--ctranslate2", "int8", "--repeats", "1", "--quiet") == 0
    assert "cannot take this verifier (a reason); goes on without it" in caplog.text
    assert sorted(name for name, _, _ in made(out)) == sorted(NAMES)
    assert "CTranslate2 is left out: CTranslate2 cannot take" in (out / "table.md").read_text()
    summary = json.loads((out / "summary.json").read_text())
    assert summary["left_out"] == {
        "CTranslate2": "CTranslate2 cannot take this verifier (a reason)"
    }
    assert "ctranslate2" not in summary["machine"]["versions"]


@pytest.mark.usefixtures("run")
def test_pictures(world: Path, out: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib, of the extra [bench], is not here")
    flags = ["--path", "drafter.pt", "--AR-path", "verifier.pt", "--source", "in.txt"]
    flags = [str(world / word) if "." in word else word for word in flags]
    more = ["--max-len-b", "9", "--repeats", "1", "--output-path", str(out), "--quiet"]
    assert script.main([str(world), *flags, *more, *SMALL]) == 0
    assert (out / "speed.png").read_bytes().startswith(b"\x89PNG")
    assert b"strict tree float64" in (out / "speed.svg").read_bytes()


@pytest.mark.parametrize(
    ("flags", "status", "message"),
    [
        (["--beam", "0"], 2, "--beam 0: must be at least 1"),
        (["--threads", "4096"], 2, "--threads 4096: must be from 1 to "),
        (["--rule", "loose"], 2, "--rule loose: must be strict, relaxed or relaxed:BETA:TAU, for"),
        (["--rule", "relaxed:1:0.5"], 2, "--rule relaxed:1:0.5: must be strict"),
        (["--bf16"], 2, "--bf16: choose with --precision; leave it out"),
        (["--sampling"], 2, "--sampling: systems are compared by what they say"),
        (["--seed", "2"], 2, "--seed 2: nothing is drawn; leave it out"),
        (["--beta", "1"], 2, "--beta 1: relaxed acceptance takes 2 or more"),
        (["--strategy", "AR"], 2, "--strategy AR: all strategies are compared"),
        (["--baseline", "other"], 1, "--baseline 'other': is not one of the systems: fairseq"),
        (["--source", "nowhere"], 1, "--input-path nowhere: cannot be read"),
        (["--block-size", "9"], 2, "block"),
    ],
)
def test_bad_input_is_one_line(
    run: Run,
    world: Path,
    out: Path,
    capfd: pytest.CaptureFixture[str],
    flags: list[str],
    status: int,
    message: str,
) -> None:
    given = [str(world / "short.txt") if word == "SHORT" else word for word in flags]
    assert run(*SMALL, *given) == status
    assert message in one_error(capfd)
    assert not (out / "runs.jsonl").exists()


def test_the_command_of_the_manual_is_understood() -> None:
    page = Path(__file__).resolve().parents[2] / "docs/evaluation.md"
    command = page.read_text("utf-8").partition("    specdec-benchmark ")[2].partition("\n\n")[0]
    args = script.parse(shlex.split(command.replace("\\\n", " "), comments=True))
    assert (args.input_path, args.reference) == (["valid.en"], ["valid.de"])
    assert args.batch == [1, 8, 32]
    assert args.data == "PAIR"


@pytest.mark.parametrize(
    ("flags", "beta", "tau"),
    [
        ("", 3, 1.0),
        ("--tau 2.5", 3, 2.5),
        ("--beta 5", 5, 1.0),
        ("--beta 5 --tau inf", 5, math.inf),
    ],
)
def test_what_relaxed_means(flags: str, beta: int, tau: float) -> None:
    paths = ["--source", "x", "--output-path", "y", "--ctranslate2"]
    args = script.parse(["data", *paths, *flags.split()])
    assert script.choose(args).rules == [StrictRule(), RelaxedRule(beta, tau)]


def test_what_is_not_installed_is_named(
    run: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ctranslate2_system, "find_spec", lambda name: None)
    assert run() == 2
    assert "ctranslate2 is not installed: pip install" in one_error(capfd)
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    flags = ["--path", "d", "--AR-path", "v", "--source", "x", "--output-path", "y"]
    assert script.main(["data", *flags, "--ctranslate2"]) == 2
    assert "pip install matplotlib, or give --no-plots" in one_error(capfd)


def test_a_system_that_fails_is_named(
    run: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ended = Mock()
    ended.load.side_effect = InferenceError("AR, 1 thread: its process ended (status -9)")
    monkeypatch.setattr(experiment, "SystemProcess", lambda *_: nullcontext(ended))
    assert run(*SMALL) == 1
    assert "AR, 1 thread: its process ended (status -9)" in one_error(capfd)
