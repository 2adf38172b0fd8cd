"""scripts/check_tuning.py: what tuning finds, tried on other texts."""

import json
from pathlib import Path

import pytest
from drafters import save_pair
from scripts_here import load_script

from specdec_plugins.evaluation import tuning

TREES = (4, 6)
check_tuning = load_script("check_tuning")
pages = load_script("pages")


def test_every_text_precision_and_batch_size_has_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tuning, "TREES", TREES)
    pair = save_pair(tmp_path / "pair")
    (pair / "example.en").write_text("w3 w4 w5\nw1\n")
    texts = [tmp_path / "a.en", tmp_path / "b.en"]
    for text in texts:
        text.write_text("w1 w2\n\nw5 w6 w7\nw3\n")
    models = ["--path", str(pair / "drafter.pt"), "--AR-path", str(pair / "verifier.pt")]
    out = tmp_path / "out.json"
    argv = [
        str(pair),
        *models,
        "--cpu",
        "--max-len-b",
        "4",
        "--engine",
        "eager",
        "--json",
        str(out),
    ]
    argv += ["--precision", "float32", "--batch", "1", "2", "--input-path", *map(str, texts)]
    assert check_tuning.main(argv) == 0
    figures = json.loads(out.read_text())
    rows = figures["checked"]
    assert [(row["text"], row["batch"]) for row in rows] == [
        (name, size) for name in ("a.en", "b.en") for size in (1, 2)
    ]
    for row in rows:
        took = row["milliseconds"]
        assert {name for name in took if name.startswith("trees")} == {
            f"trees of {size}" for size in TREES
        }
        # Neither AR nor what was found is dropped, and the ratios are of one round each.
        for name in ("AR by our loop", row["found"], row["fastest"]):
            assert len(took[name]) == check_tuning.ROUNDS
        pairs = zip(took[row["found"]], took[row["fastest"]])
        assert row["fastest over found"] == sorted(b / a for a, b in pairs)
    assert capfd.readouterr().out.count("\n") == len(rows)
    table = list(pages.checked_table({**figures, "name": "x"}, {"batch": "2"}))
    assert len([line for line in table if line.startswith(("| a.en", "| b.en"))]) == 2
    assert "1 thread, strict" in table[-1]
