"""The shipped WMT pair does what its card says."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from conftest import need_bfloat16
from odd_lines import KINDS, odd_lines

from specdec_plugins.decoding.controllers.base import CONTROLLERS
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.inference import Settings, load_translator

pytestmark = pytest.mark.no_cover

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "checkpoints" / "wmt.en-de"
SOURCES = (ROOT / "data" / "example.en").read_text("utf-8").splitlines()[::4]


def test_the_folder_is_complete_and_small() -> None:
    files = {path.name: path.stat().st_size for path in MODEL.iterdir()}
    heads = {f"acceptance_head{rule}.pt" for rule in ("", ".relaxed", ".sampling")}
    assert {"verifier.pt", "drafter.pt", "dict.en.txt", "dict.de.txt", "codes"} <= set(files)
    assert heads <= set(files)
    assert sum(files.values()) <= 80_000_000


@cache
def decoded(strategy: str, controller: str) -> tuple[list[str], DecodingStatistics]:
    settings = Settings.of_model(
        MODEL,
        strategy=strategy,
        batch=5,
        beam=1,
        precision="float64",
        controller=CONTROLLERS[controller](),
    )
    pair = load_translator(settings)
    return [t.text for t in pair.translate(SOURCES)], pair.statistics


@pytest.mark.parametrize("controller", ["constant", "acceptance-head", "tree"])
def test_strict_output_is_beam_1(controller: str) -> None:
    expected, _ = decoded("fairseq", "constant")
    assert decoded("specdec", controller)[0] == expected
    assert all(expected)


@cache
def odd_output(strategy: str, controller: str, batch: int) -> list[str]:
    settings = Settings.of_model(
        MODEL,
        strategy=strategy,
        batch=batch,
        beam=1,
        keep_bpe=True,
        precision="float64",
        controller=CONTROLLERS[controller](),
        limits=GenerationLimits(max_len_a=1.3, max_len_b=12, lenpen=0.4),
    )
    lines = odd_lines(" ".join(SOURCES).split(), len(KINDS), seed=1)
    return [translation.text for translation in load_translator(settings).translate(lines)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("controller", "batch"),
    [("confidence", 5), ("oracle", 5), ("oracle", 16)],
)
def test_strict_output_of_odd_lines_is_beam_1(controller: str, batch: int) -> None:
    expected = odd_output("fairseq", "constant", 1)
    assert odd_output("specdec", controller, batch) == expected
    assert len(set(expected)) > len(KINDS) / 2


def test_acceptance_length_has_not_changed() -> None:
    """As measured on these sentences with this pair."""
    _, statistics = decoded("specdec", "tree")
    assert statistics.acceptance_length == pytest.approx(4.735, rel=0.05)


@pytest.mark.parametrize(
    ("precision", "most"),
    [
        pytest.param("float32", 0, marks=pytest.mark.slow),
        pytest.param("bfloat16", 2, marks=pytest.mark.slow),
        ("int8", 3),
    ],
)
def test_a_precision_changes_few_sentences(precision: str, most: int) -> None:
    """One at a time, by OpenVINO: as far as this processor's kernels are right."""
    pytest.importorskip("openvino", reason="OpenVINO is not installed")
    if precision == "bfloat16":
        need_bfloat16()
    if precision == "int8":
        pytest.importorskip("nncf", reason="NNCF is not installed")
    exact, _ = decoded("fairseq", "constant")
    settings = Settings.of_model(MODEL, engine="openvino", precision=precision)
    found = [t.text for t in load_translator(settings).translate(SOURCES)]
    assert sum(one != other for one, other in zip(exact, found, strict=True)) <= most
