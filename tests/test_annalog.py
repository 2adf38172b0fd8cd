"""Published weights: ANNalog, which writes molecules that are like a molecule (SMILES to SMILES).

The model is that of the package ``annalog`` (MIT licence): either the folder that
``SPECDEC_ANNALOG`` names, with a fairseq checkpoint, 30 molecules and the greedy output of the
package's own code; or the installed package, whose network then writes that output here.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers.models.molecules import MOLECULES, TOKEN, Published, package

from specdec_plugins.engines.writer import kernel
from specdec_plugins.inference import Settings, Translator, load_translator

FOLDER = Path(os.environ.get("SPECDEC_ANNALOG") or os.devnull)


class Model(NamedTuple):
    """A folder of a checkpoint, sources of it, and the output of its own code."""

    folder: Path
    molecules: list[str]
    expected: list[str]


@pytest.fixture(scope="module", params=["folder", "package"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    if request.param == "folder":
        if not FOLDER.is_dir():
            pytest.skip("SPECDEC_ANNALOG names no folder of ANNalog's weights")
        files = (FOLDER / name for name in ("test.smi", "original.greedy"))
        return Model(FOLDER, *(file.read_text("utf-8").splitlines() for file in files))
    if (installed := package()) is None:
        pytest.skip("annalog is not installed (pip install annalog --no-deps)")
    folder = tmp_path_factory.mktemp("annalog")
    published = Published(installed)
    published.save(folder)
    sources = [" ".join(["<s>", *TOKEN.findall(molecule)]) for molecule in MOLECULES]
    return Model(folder, sources, [published.greedy(molecule) for molecule in MOLECULES])


def translated(model: Model, **options: object) -> tuple[list[str], Translator]:
    settings = Settings.of_model(model.folder, **{"path": None, **options})
    translator = load_translator(settings)
    outputs = translator.translate(model.molecules)
    return ["".join(output.tokens[:-1]) for output in outputs], translator


EAGER = {"engine": "eager", "precision": "float64"}


@pytest.mark.parametrize("batch", [1, 8])
def test_greedy_output_is_the_published_codes(batch: int, model: Model) -> None:
    assert len(model.expected) == 30
    assert translated(model, strategy="AR", batch=batch, **EAGER)[0] == model.expected
    assert translated(model, strategy="AR", batch=batch)[0] == model.expected


@pytest.mark.parametrize(("drafts", "least"), [("source", 5.0), ("copy", 20.0)])
def test_drafts(drafts: str, least: float, model: Model) -> None:
    """Analogs are like their molecules, so that these are drafts; a copy in int8 is better."""
    outputs, translator = translated(model, drafts=drafts)
    assert outputs == model.expected
    assert translator.statistics.acceptance_length > least


def test_int8(model: Model) -> None:
    """Output in int8, which nothing verifies, differs in few molecules."""
    outputs, translator = translated(model, strategy="AR", precision="int8")
    assert translator.engine == ("onnxruntime" if kernel.FAMILY is None else "writer")
    same = sum(a == b for a, b in zip(outputs, model.expected, strict=True))
    assert same >= 20
