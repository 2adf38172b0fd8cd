"""Engines by name, precision and device."""

from __future__ import annotations

import pytest
import torch
from conftest import need_bfloat16

from specdec_plugins.engines import choice, openvino
from specdec_plugins.engines.choice import TORCH, choose_engine, choose_engines, engine_name
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
    monkeypatch.setattr(choice, "is_installed", lambda engine: True)
    engine = choose_engine("auto", precision, "cpu")
    assert (engine.name, engine.precision) == (name, precision)


@pytest.mark.parametrize(
    "options",
    [
        ("eager", "int8", "cpu"),
        ("auto", "int8", "cuda"),
        ("auto", "float16", "cpu"),
        ("openvino", "float64", "cpu"),
        ("openvino", "float32", "cuda"),
        ("cuda-graphs", "float32", "cpu"),
        ("cuda-graphs", "int8", "cuda"),
    ],
)
def test_engines_refuse_precisions_and_devices(options: tuple[str, str, str]) -> None:
    with pytest.raises(ValueError, match=f"--engine {options[0]} --precision {options[1]}: "):
        engine_name(*options)


@pytest.mark.parametrize("precision", TORCH)
def test_on_a_gpu(precision: str) -> None:
    assert choose_engine("auto", precision, "cuda:1").name == "cuda-graphs"
    assert choose_engine("eager", precision, "cuda").name == "eager"


@pytest.mark.parametrize("precision", [None, "bfloat16"])
def test_the_drafter_shares_the_engine_unless_its_precision_differs(
    precision: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_bfloat16()
    monkeypatch.setattr(choice, "is_installed", lambda engine: True)
    engines = choose_engines("auto", "bfloat16", precision, "cpu")
    assert engines.verifier is engines.drafter
    engines = choose_engines("auto", "float32", precision, "cpu")
    assert engines.verifier.precision == "float32"
    drafter = engines.drafter
    assert (drafter.name, drafter.precision) == ("openvino", precision or "float32")


def test_a_precision_that_falls_back_to_the_verifiers_shares_its_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("openvino", reason="the extra [openvino] is not installed")
    monkeypatch.setattr(openvino, "has_bfloat16", lambda: False)
    engines = choose_engines("openvino", "float32", "bfloat16", "cpu")
    assert engines.verifier is engines.drafter


@pytest.mark.parametrize(("engine", "precision"), [("eager", "float32"), ("auto", "float64")])
def test_eager_has_one_precision(engine: str, precision: str) -> None:
    with pytest.raises(ValueError, match=r"--drafter-precision bfloat16: .* eager runs"):
        choose_engines(engine, precision, "bfloat16", "cpu")


def test_engines_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "openvino", None)
    for engine, precision in (("auto", "int8"), ("openvino", "float32")):
        with pytest.raises(EngineError, match=r"specdec-plugins\["):
            choose_engine(engine, precision, "cpu")
