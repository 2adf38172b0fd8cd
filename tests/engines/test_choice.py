"""Engines by name, precision and device."""

from __future__ import annotations

import pytest
import torch

from specdec_plugins.engines import choice
from specdec_plugins.engines.choice import TORCH, choose_engine, choose_engines, engine_name
from specdec_plugins.files.errors import EngineError


@pytest.mark.parametrize(
    ("installed", "precision", "name"),
    [
        *((False, precision, "eager") for precision in ("float32", "float64", "bfloat16")),
        (True, "float32", "onnxruntime"),
        (True, "int8", "onnxruntime"),
        (True, "float64", "eager"),
    ],
)
def test_on_a_cpu(
    installed: bool, precision: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "onnxruntime":
        pytest.importorskip("onnxruntime", reason="the extra [int8] is not installed")
    monkeypatch.setattr(choice, "is_installed", lambda engine: installed or engine == "eager")
    engine = choose_engine("auto", precision, "cpu")
    assert (engine.name, engine.precision) == (name, precision)
    assert name != "eager" or engine.dtype == getattr(torch, precision)


@pytest.mark.parametrize(
    "options",
    [
        ("eager", "int8", "cpu"),
        ("auto", "int8", "cuda"),
        ("auto", "float16", "cpu"),
        ("onnxruntime", "float64", "cpu"),
        ("onnxruntime", "float32", "cuda"),
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


@pytest.mark.parametrize("precision", [None, "int8"])
def test_the_drafter_shares_the_engine_unless_its_precision_differs(
    precision: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime", reason="the extra [int8] is not installed")
    monkeypatch.setattr(choice, "is_installed", lambda engine: True)
    engines = choose_engines("auto", "int8", precision, "cpu")
    assert engines.verifier is engines.drafter
    engines = choose_engines("auto", "float32", precision, "cpu")
    assert (engines.verifier is engines.drafter) == (precision is None)
    assert engines.verifier.precision == "float32"
    drafter = engines.drafter
    assert (drafter.name, drafter.precision) == ("onnxruntime", precision or "float32")


@pytest.mark.parametrize(("engine", "precision"), [("eager", "float32"), ("auto", "float64")])
def test_eager_has_one_precision(engine: str, precision: str) -> None:
    with pytest.raises(ValueError, match=r"--drafter-precision int8: .* eager runs"):
        choose_engines(engine, precision, "int8", "cpu")


def test_engines_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    for engine, precision in (("auto", "int8"), ("onnxruntime", "float32")):
        with pytest.raises(EngineError, match=r"specdec-plugins\["):
            choose_engine(engine, precision, "cpu")
