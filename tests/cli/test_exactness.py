"""scripts/exactness.py: what it compares, and what it ends with."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import need_bfloat16

from specdec_plugins.cli import exactness as script
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.evaluation import differences
from specdec_plugins.files.lock import reserved
from specdec_plugins.inference import Settings

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "checkpoints" / "multi30k.en-de"
Run = Callable[..., int]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    def run_script(text: bytes, *flags: str) -> int:
        (path := tmp_path / "in.en").write_bytes(text)
        argv = ["exactness.py", str(MODEL), "--input-path", str(path), *flags]
        monkeypatch.setattr(sys, "argv", argv)
        return int(script.main())

    return run_script


TEXT = b"A dog runs.\n\nTwo men are talking.\n"


def test_in_float64_all_are_the_same(
    run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    figures = tmp_path / "figures.json"
    flags = ("--batch", "1", "2", "--controller", "tree", "--json", str(figures))
    assert run(TEXT, *flags) == 0
    head, *rows = capfd.readouterr().out.splitlines()
    assert head.startswith("2 lines, eager, float64")
    assert [row.split("|")[0].strip() for row in rows] == [
        "strict, tree, batch 1: AR",
        "strict, tree, batch 1: stock beam 1",
        "strict, tree, batch 2: AR",
        "strict, tree, batch 2: stock beam 1",
        "AR, batch 2: AR, batch 1",
        "AR: stock beam 1",
        "AR: AR in eager float32",
    ]
    assert all("0 (0.0 %)" in row for row in rows[:-1])
    told = json.loads(figures.read_text("utf-8"))
    assert [one["compared"] for one in told["comparisons"]] == [
        row.split("|")[0].strip() for row in rows
    ]
    assert {(one["lines"], one["differ"]) for one in told["comparisons"][:-1]} == {(2, 0)}
    assert told["command"].startswith("exactness.py ")
    assert {"verifier", "drafter", "dict.de.txt", "codes"} <= set(told["models"])
    assert {"processor", "cores", "versions", "last_run"} == set(told["machine"])


def test_a_repetition_penalty(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    """Of all but stock search, which has none: what is said differs, and not from AR's."""
    flags = ("--repetition-penalty", "3", "--batch", "1", "--controller", "tree")
    assert run(TEXT, *flags) == 0
    _, *rows = capfd.readouterr().out.splitlines()
    assert [row.split("|")[:2] for row in rows[:1]] == [
        [f"{'strict, tree, batch 1: AR':{differences.WIDTH}} ", f" {'0 (0.0 %)':>17} "]
    ]
    assert not any("stock" in row for row in rows)
    with pytest.raises(SystemExit):
        run(TEXT, *flags, "--against", "stock")
    assert "--against stock: fairseq's own search has no --rep" in capfd.readouterr().err


def test_all_systems_have_the_same_limits_and_prefix(
    run: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    taken, settings_of = [], script.settings_of

    def noted(model: Path, **given: Any) -> Settings:
        taken.append([given.get(name) for name in ("strategy", "limits", "target_prefix")])
        return settings_of(model, **given)

    monkeypatch.setattr(script, "settings_of", noted)
    flags = ("--max-len-a", "0.5", "--max-len-b", "2", "--lenpen", "0.3", "--batch", "1")
    assert run(TEXT, *flags, "--against", "stock", "--target-prefix", "Ein") == 0
    limits = GenerationLimits(max_len_a=0.5, max_len_b=2, lenpen=0.3)
    judge, *compared = taken
    assert judge == ["AR", limits, None]
    assert compared == [[strategy, limits, "Ein"] for strategy in ("AR", "specdec", "fairseq")]
    _, *rows = capfd.readouterr().out.splitlines()
    assert len(rows) == 3
    assert all("0 (0.0 %)" in row for row in rows)


def test_figures_are_not_written_over_what_is_read(
    run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(TEXT, "--json", str(tmp_path / "in.en")) == 2
    assert "is the same file as --input-path" in capfd.readouterr().err
    assert (tmp_path / "in.en").read_bytes() == TEXT
    assert run(TEXT, "--json", str(tmp_path / "none" / "x.json")) == 2
    assert "--json" in capfd.readouterr().err


def test_figures_of_another_run(
    run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "figures.json"
    with reserved([("--json", path)]):
        assert run(b"A man sings.\n", "--json", str(path)) == 2
    assert f"--json {path}: another run is at work there" in capfd.readouterr().err
    assert not path.exists()


def test_in_lower_precision(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    flags = ("--precision", "bfloat16", "--batch", "1")
    assert run(TEXT, *flags) == 0
    titles = [row.split("|")[0].strip() for row in capfd.readouterr().out.splitlines()]
    assert titles == [
        "2 lines, eager, bfloat16",
        "strict, constant, batch 1: AR",
        "AR: AR in eager float32",
    ]


@pytest.mark.slow
def test_drafts_in_a_precision_of_their_own(
    run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    need_bfloat16()
    flags = ["--drafter-precision", "bfloat16", "--batch", "1"]
    assert run(TEXT, *flags) == 2
    assert capfd.readouterr().err.startswith(
        "exactness.py: --drafter-precision bfloat16: is for --engine openvino"
    )
    figures = tmp_path / "figures.json"
    flags += ["--engine", "openvino", "--precision", "float32", "--json", str(figures)]
    assert run(TEXT, *flags) == 0
    assert capfd.readouterr().out.startswith("2 lines, openvino, float32, bfloat16 drafts ")
    told = json.loads(figures.read_text("utf-8"))
    assert told["precision"] == "float32, bfloat16 drafts"
    assert {one["compared"]: one["differ"] for one in told["comparisons"]} == {
        "strict, constant, batch 1: AR": 0,
        "AR: AR in eager float32": 0,
    }


@pytest.mark.parametrize(
    ("precision", "exact", "status"),
    [("float64", True, 1), ("float64", False, 0), ("bfloat16", True, 0), ("float32", True, 0)],
)
def test_differences_and_their_gaps(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    precision: str,
    exact: bool,
    status: int,
) -> None:
    """Two of three lines differ, and how close each was is told."""
    gaps = iter([0.25, 0.5])
    outputs = [["a"], ["b"], ["c"]], [["a"], ["d"], []]
    monkeypatch.setattr(script, "comparisons", lambda *_: iter([("some", *outputs, exact)]))
    monkeypatch.setattr(differences, "gap", lambda *_: next(gaps))
    assert run(b"one\ntwo\nthree\n", "--precision", precision) == status
    columns = [part.strip() for part in capfd.readouterr().out.splitlines()[-1].split("|")]
    assert columns == ["some", "2 (66.7 %)", "0.5", "0.38"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "in.en: holds no sentence"),
        (b"\n  \n", "in.en: holds no sentence"),
        (b"A dog.\nA \xff dog.\n", "in.en: line 2 is not UTF-8"),
    ],
)
def test_faults_of_the_input(
    run: Run, text: bytes, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(text) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("exactness.py: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1
