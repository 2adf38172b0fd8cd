"""OpenVINO's requests and options."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from scripts_here import run as run_program

pytest.importorskip("openvino", reason="the extra [openvino] is not installed")

from test_compiled import TwoMatrices, inputs, pair

from specdec_plugins.decoding.steps.encoder import EncoderStep, MemoryStep
from specdec_plugins.decoding.steps.verifier import VerifierStep
from specdec_plugins.engines import openvino
from specdec_plugins.engines.openvino import GROUP_SIZE, OpenVinoEngine
from specdec_plugins.engines.step import Step
from specdec_plugins.engines.traced_step import TracedStep


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list to which every compiled model is added."""
    core, models = openvino.core(), []

    class Core:
        read_model = core.read_model

        def compile_model(self, *arguments: Any) -> Any:
            models.append(core.compile_model(*arguments))
            return models[-1]

    monkeypatch.setattr(openvino, "core", Core)
    return models


def test_single_rows_are_compiled_for_four_numbers_of_tokens(compilations: list[Any]) -> None:
    """Cached positions and source tokens may be any number."""
    torch.manual_seed(0)
    step = VerifierStep(pair("all shared")[0])
    run = OpenVinoEngine().prepare(step)
    assert len(compilations) == 1
    for cached, source in ((4, 7), (2, 9)):
        for tokens in (1, 2, 3, 4, 5, 1):
            tensors = inputs(step, 1, tokens, cached, source)
            for expected, actual in zip(step(*tensors), run(*tensors), strict=True):
                torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)
    assert len(compilations) == 5


@pytest.mark.parametrize("name", ["encoder", "memory"])
def test_single_sources_are_compiled_for_four_lengths(name: str, compilations: list[Any]) -> None:
    """Several sources may have any lengths."""
    torch.manual_seed(0)
    verifier, _ = pair("all shared")
    step: Any = (
        EncoderStep(verifier.encoder)
        if name == "encoder"
        else MemoryStep(VerifierStep(verifier).layers)
    )
    run = OpenVinoEngine().prepare(step)
    for rows, lengths in ((1, (3, 5, 4, 6, 7, 3)), (2, (3, 8)), (1, (9,))):
        for tokens in lengths:
            tensors = tuple(torch.randn_like(x) for x in step.example(rows, tokens))
            torch.testing.assert_close(run(*tensors)[0], step(*tensors)[0], atol=1e-5, rtol=1e-4)
        assert len(compilations) == 5


def test_one_row_that_is_compiled_wrongly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The model for all sizes runs it."""
    step = VerifierStep(pair("all shared")[0])
    run = OpenVinoEngine().prepare(step)

    def check(self: TracedStep, run: Any, rows: int, tokens: int) -> None:
        if rows == 1:
            raise RuntimeError("what it computes is not what PyTorch does")

    monkeypatch.setattr(TracedStep, "check", check)
    tensors = inputs(step, 1)
    results, expected = run(*tensors)[0], step(*tensors)[0]
    torch.testing.assert_close(results, expected, atol=1e-5, rtol=1e-4)
    assert "cannot compile a step of one row: what it computes" in caplog.text


def test_int8_groups_are_as_wide_as_every_matrix_allows(compilations: list[Any]) -> None:
    (result,) = OpenVinoEngine("int8").prepare(TwoMatrices())(torch.ones(2, 128))
    assert result.allclose(torch.ones(2, 7), rtol=0.02)
    assert [int(model.get_property(GROUP_SIZE)) for model in compilations] == [64]


def test_an_option_that_openvino_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not documented, and may be gone: steps are compiled without it."""
    monkeypatch.setattr(openvino, "UNFUSED", {"NO_SUCH_OPTION": "x"})
    torch.manual_seed(0)
    step: Step = VerifierStep(pair("all shared")[0])
    tensors = inputs(step)
    results, expected = OpenVinoEngine().prepare(step)(*tensors)[0], step(*tensors)[0]
    torch.testing.assert_close(results, expected, atol=1e-5, rtol=1e-4)


def test_signal_handlers_outlive_engines() -> None:
    script = """
import os, signal, sys, torch
from specdec_plugins.engines.openvino import OpenVinoEngine
from specdec_plugins.engines.step import Step
class Double(Step):
    def forward(self, x): return (2 * x,)
    def example(self): return (torch.ones(2, 64),)
engines = [OpenVinoEngine(), OpenVinoEngine()]
runs = [engine.prepare(Double()) for engine in engines]
while engines:
    del engines[0], runs[0]
signal.signal(signal.SIGUSR1, lambda *_: print("handled", sys.modules["openvino_telemetry"]))
os.kill(os.getpid(), signal.SIGUSR1)
"""
    # Nor is the module loaded by which OpenVINO would report its use.
    assert run_program(sys.executable, "-c", script, status=0).stdout == "handled None\n"
