"""``scripts/gpu_check.py``, tried without a GPU."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts_here import load_script

ROOT = Path(__file__).resolve().parent.parent
QUICK = [
    *("--device", "cpu", "--pair", str(ROOT / "checkpoints/multi30k.en-de"), "--lines", "2"),
    *("--source", str(ROOT / "data/captions.en"), "--batch", "2", "--rounds", "1", "--small"),
    *("--precisions", "float32", "--exact", "float64"),
]


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """The script turns them off, for its process."""
    yield
    logging.disable(logging.NOTSET)


def test_all_parts_run_on_a_cpu(tmp_path: Path) -> None:
    script = load_script("gpu_check")
    assert script.main([str(tmp_path), *QUICK, "--parts", *script.PARTS]) == 0
    results = [json.loads(line) for line in (tmp_path / "results.jsonl").open()]
    assert {result["part"] for result in results} == set(script.PARTS)
    assert all(result["differ"] == 0 for result in results if result["part"] == "exact")
    assert all(result["low"] <= result["ms_a_token"] <= result["high"]
               for result in results if result["part"] in ("timing", "big"))  # fmt: skip


def test_a_part_that_fails_says_so(tmp_path: Path) -> None:
    script = load_script("gpu_check")
    assert script.main([str(tmp_path), *QUICK, "--parts", "exact", "--exact", "float1"]) == 1
    last = json.loads((tmp_path / "results.jsonl").read_text().splitlines()[-1])
    assert last["part"] == "exact"
    assert "float1" in last["failed"]
