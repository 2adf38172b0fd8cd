"""Published weights: ANNalog, which writes molecules that are like a molecule (SMILES to SMILES).

The model is that of the package ``annalog`` (MIT licence); ``SPECDEC_ANNALOG`` names a folder of it
as a fairseq checkpoint, with 30 molecules and the greedy output of the package's own code.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from specdec_plugins.engines.writer import kernel
from specdec_plugins.inference import Settings, Translator, load_translator

ANNALOG = Path(os.environ.get("SPECDEC_ANNALOG") or os.devnull)
pytestmark = pytest.mark.skipif(
    not ANNALOG.is_dir(), reason="SPECDEC_ANNALOG names no folder of ANNalog's weights"
)


@pytest.fixture(scope="module")
def molecules() -> list[str]:
    return (ANNALOG / "test.smi").read_text("utf-8").splitlines()


@pytest.fixture(scope="module")
def expected() -> list[str]:
    return (ANNALOG / "original.greedy").read_text("utf-8").splitlines()


def translated(molecules: list[str], **options: Any) -> tuple[list[str], Translator]:
    settings = Settings.of_model(ANNALOG, **{"path": None, **options})
    translator = load_translator(settings)
    outputs = translator.translate(molecules)
    return ["".join(output.tokens[:-1]) for output in outputs], translator


EAGER = {"engine": "eager", "precision": "float64"}


@pytest.mark.parametrize("batch", [1, 8])
def test_greedy_output_is_the_published_codes(
    batch: int, molecules: list[str], expected: list[str]
) -> None:
    assert len(expected) == 30
    assert translated(molecules, strategy="AR", batch=batch, **EAGER)[0] == expected
    assert translated(molecules, strategy="AR", batch=batch)[0] == expected


@pytest.mark.parametrize(("drafts", "least"), [("source", 5.0), ("copy", 20.0)])
def test_drafts(drafts: str, least: float, molecules: list[str], expected: list[str]) -> None:
    """Analogs are like their molecules, so that these are drafts; a copy in int8 is better."""
    outputs, translator = translated(molecules, drafts=drafts)
    assert outputs == expected
    assert translator.statistics.acceptance_length > least


def test_int8(molecules: list[str], expected: list[str]) -> None:
    """Output in int8, which nothing verifies, differs in few molecules."""
    outputs, translator = translated(molecules, strategy="AR", precision="int8")
    assert translator.engine == ("onnxruntime" if kernel.FAMILY is None else "writer")
    same = sum(a == b for a, b in zip(outputs, expected, strict=True))
    assert same >= 20
