"""``scripts/gpu_check.py``, tried without a GPU."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
from helpers.runs.scripts_here import load_script

ROOT = Path(__file__).resolve().parent.parent
QUICK = [
    *("--device", "cpu", "--pair", str(ROOT / "checkpoints/multi30k.en-de"), "--lines", "1"),
    *("--source", str(ROOT / "data/captions.en"), "--batch", "1", "--rounds", "1", "--small"),
    *("--precisions", "float32", "--exact", "float64"),
]


def test_all_parts_run_on_a_cpu(tmp_path: Path) -> None:
    script = load_script("gpu_check")
    try:
        assert script.main([str(tmp_path), *QUICK, "--parts", *script.PARTS]) == 0
    finally:
        logging.disable(logging.NOTSET)  # the script turns logs off, for its process
    results = [json.loads(line) for line in (tmp_path / "results.jsonl").open()]
    assert {result["part"] for result in results} == set(script.PARTS)
    assert all(result["differ"] == 0 for result in results if result["part"] == "exact")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_how_to_try_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        load_script("gpu_check").main([str(tmp_path / "out")])
    assert "--device cpu tries" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
