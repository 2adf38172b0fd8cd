"""What somebody with a GPU runs, tried without one."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from emulated import IS_HERE, LACKING
from scripts_here import load_script

ROOT = Path(__file__).resolve().parent.parent
SHORT = ["--pair", str(ROOT / "checkpoints/multi30k.en-de"), "--lines", "2", "--batch", "1", "2"]


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """The script turns them off, for its process."""
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def script() -> Any:
    return load_script("gpu_check")


@pytest.mark.slow
@pytest.mark.skipif(not IS_HERE, reason=LACKING)
def test_counts(script: Any, tmp_path: Path) -> None:
    script.main(["count", *SHORT, "--json", str(tmp_path / "counts.json")])
    found = json.loads((tmp_path / "counts.json").read_text())["counted"]
    by_name = {(one["system"], one["engine"], one["batch"]): one for one in found}
    assert len(by_name) == 2 * (1 + 2 * len(script.OURS))
    for system in script.OURS:
        for batch in (1, 2):
            ours, eager = (by_name[system, engine, batch] for engine in ("cuda-graphs", "eager"))
            assert 0 < ours["waits"] < eager["waits"] < by_name["fairseq beam 1", "fairseq", batch][
                "waits"
            ]  # fmt: skip
            assert ours["copies to device"] == 0


@pytest.mark.parametrize(
    "part",
    [
        "check",
        "graphs",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("profile", "eager", "base")),
    ],
)
def test_parts_for_a_gpu_run_on_a_cpu(
    part: str, script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = [*SHORT, "--rounds", "1", "--tokens", "3"]
    script.main([part, "--device", "cpu", *quick, "--json", str(tmp_path / "f")])
    found = json.loads((tmp_path / "f").read_text())["measured"]
    assert len(capsys.readouterr().out.splitlines()) == len(found)
    engines = {"eager", "cuda-graphs"} if part in ("check", "profile") else set()
    engines |= {"fairseq", "eager" if part in ("check", "profile", "eager") else "cuda-graphs"}
    if part == "base":
        pytest.importorskip("ctranslate2", reason="the extra [ctranslate2] is not installed")
        engines.add("ctranslate2")
        assert len({one["models"] for one in found}) == 2
    assert {one["engine"] for one in found} == engines
    if part == "check":
        assert all(one["lines alike"] == one["lines"] == 2 for one in found)
    elif part != "profile":
        assert all(0 < one["ms a token"] <= one["ms a step of a row"] for one in found)


def test_what_has_no_cuda_is_left_out_with_a_line(
    script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ctranslate2", reason="the extra [ctranslate2] is not installed")
    models = SimpleNamespace(device="cpu", precision="float64")
    assert not list(script.ctranslate2_systems(models, 1))
    assert capsys.readouterr().err == "CTranslate2 has no float64 on this device: left out\n"
