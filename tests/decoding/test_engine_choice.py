"""Which engine runs the models."""

from __future__ import annotations

import pytest
import torch
from conftest import need_bfloat16

from specdec_plugins.decoding import engine_choice
from specdec_plugins.decoding.engine_choice import (
    PRECISIONS,
    check_engine,
    choose_engine,
    choose_engines,
)
from specdec_plugins.engines import openvino_core
from specdec_plugins.files.errors import EngineError


@pytest.mark.parametrize("precision", ["float32", "float64", "bfloat16"])
def test_without_openvino(precision: str) -> None:
    engine = choose_engine("auto", precision, "cpu")
    assert (engine.name, engine.precision) == ("eager", precision)
    assert engine.dtype == getattr(torch, precision)


@pytest.mark.parametrize(
    ("precision", "name"),
    [("float32", "openvino"), ("int8", "openvino"), ("float64", "eager")],
)
def test_with_openvino(precision: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino", reason="the extra [openvino] is not installed")
    monkeypatch.setattr(engine_choice, "has_openvino", lambda: True)
    engine = choose_engine("auto", precision, "cpu")
    assert (engine.name, engine.precision) == (name, precision)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (("eager", "int8", "cpu"), "--precision int8: is for CPUs and --engine openvino"),
        (("auto", "int8", "cuda"), "--precision int8: is for CPUs"),
        (("auto", "float16", "cpu"), "--precision float16: needs a GPU"),
        (("openvino", "float64", "cpu"), "--engine openvino: has no --precision float64"),
        (("openvino", "float32", "cuda"), "--engine openvino: is for CPUs"),
        (("cuda-graphs", "float32", "cpu"), "--engine cuda-graphs: is for NVIDIA GPUs"),
        (("cuda-graphs", "int8", "cuda"), "--precision int8: is for CPUs"),
    ],
)
def test_what_does_not_go_together(asked: tuple[str, str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check_engine(*asked)


@pytest.mark.parametrize("precision", [name for name in PRECISIONS if name != "int8"])
def test_on_a_gpu(precision: str) -> None:
    assert choose_engine("auto", precision, "cuda:1").name == "cuda-graphs"
    assert choose_engine("eager", precision, "cuda").name == "eager"


@pytest.mark.parametrize("asked", [None, "bfloat16"])
def test_the_drafter_has_the_verifiers_engine_unless_it_is_to_have_its_own(
    asked: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_bfloat16()
    monkeypatch.setattr(engine_choice, "has_openvino", lambda: True)
    engines = choose_engines("auto", "bfloat16", asked, "cpu")
    assert engines.verifier is engines.drafter
    engines = choose_engines("auto", "float32", asked, "cpu")
    assert engines.verifier.precision == "float32"
    assert (engines.drafter.name, engines.drafter.precision) == ("openvino", asked or "float32")


def test_a_drafter_in_what_the_verifier_is_computed_in_has_its_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("openvino", reason="the extra [openvino] is not installed")
    monkeypatch.setattr(openvino_core, "has_bfloat16", lambda: False)
    engines = choose_engines("openvino", "float32", "bfloat16", "cpu")
    assert engines.verifier is engines.drafter


@pytest.mark.parametrize(
    ("engine", "precision", "why"),
    [
        ("eager", "float32", "eager runs --precision float32 here; leave it out"),
        ("auto", "float64", "eager runs --precision float64 here; leave it out"),
        ("auto", "float32", r"OpenVINO is not installed; pip install .*, or leave it out"),
    ],
)
def test_eager_has_one_precision(engine: str, precision: str, why: str) -> None:
    said = f"--drafter-precision bfloat16: is for --engine openvino, and {why}"
    with pytest.raises(ValueError, match=said):
        choose_engines(engine, precision, "bfloat16", "cpu")


def test_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match=r"specdec-plugins\[openvino,int8\]"):
        choose_engine("auto", "int8", "cpu")
    monkeypatch.setitem(__import__("sys").modules, "openvino", None)
    with pytest.raises(EngineError, match=r"specdec-plugins\[openvino\]"):
        choose_engine("openvino", "float32", "cpu")
