"""The gap of two outputs: by how much the verifier prefers one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specdec_plugins.evaluation.texts import gap
from specdec_plugins.files.lines import Line
from specdec_plugins.inference import Settings, load_translator

MODEL = Path(__file__).resolve().parents[2] / "checkpoints" / "multi30k.en-de"


def test_the_gap_is_the_verifiers_at_the_first_difference() -> None:
    line = Line(1, "A dog runs through the snow.")
    given = {"strategy": "AR", "engine": "eager", "precision": "float64", "keep_bpe": True}
    judge: Any = load_translator(Settings.of_model(MODEL, **given))
    (translation,) = judge.translate([line])
    own = translation.text.split()
    other = [*own[:2], own[0], *own[3:]]
    found = gap(judge, line, own, other)
    assert found > 0
    assert gap(judge, line, other, own) == found
    # What comes after is not looked at; and where one ends, the other goes on.
    assert gap(judge, line, own, [*other[:3], "Hund"]) == found
    assert gap(judge, line, own, own[:3]) > 0
    # A token that the output has already is further behind, if it is penalised.
    assert gap(judge, line, own, other, 2.0) > found
