"""Steps compiled by OpenVINO give what PyTorch gives, as far as their precision goes."""

from __future__ import annotations

import copy
import logging
import sys
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_batch, make_task, make_verifier
from controlled import HEAD
from drafters import make_block, make_causal
from scripted import DICTIONARY
from scripts_here import run as run_program

import specdec_plugins
from specdec_plugins.decoding.build import build_generator
from specdec_plugins.decoding.controllers.base import CONTROLLERS
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.steps.drafter import DrafterStep
from specdec_plugins.decoding.steps.encoder import EncoderStep, MemoryStep
from specdec_plugins.decoding.steps.verifier import VerifierStep
from specdec_plugins.engines import openvino_core
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.engine import Engine, Engines
from specdec_plugins.engines.step import Step
from specdec_plugins.files.errors import EngineError

pytest.importorskip("openvino", reason="the extra [openvino] is not installed")

from specdec_plugins.engines.openvino import OpenVinoEngine
from specdec_plugins.engines.traced_step import TracedStep, example_inputs
from specdec_plugins.engines.weight_compression import WeightCompression

NEEDS_BFLOAT16 = pytest.mark.skipif(
    not openvino_core.has_bfloat16(), reason="OpenVINO has no bfloat16 on this processor"
)
BFLOAT16 = pytest.param("bfloat16", marks=NEEDS_BFLOAT16)
K = 4
PAIRS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "published drafter": ({}, "block", {"src_embedding_copy": True}),
    "all shared": (
        {"encoder_normalize_before": True, "decoder_normalize_before": True},
        "causal",
        {
            "share_verifier_encoder": True,
            "verifier_features": True,
            "verifier_feature_layers": "1",
            "previous_token_head": True,
        },
    ),
    "learned positions": (
        {"encoder_learned_pos": True, "decoder_learned_pos": True, "share_all_embeddings": True},
        "causal",
        {"decoder_learned_pos": True},
    ),
    "no positions, narrow": (
        {"no_token_positional_embeddings": True, "decoder_output_dim": 8, "activation_fn": "gelu"},
        "causal",
        {"previous_token_head": True},
    ),
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder / "specdec" / "compiled" / specdec_plugins.__version__


@cache
def pair(name: str) -> tuple[Any, Any]:
    overrides, kind, options = PAIRS[name]
    task = make_task(block_size=K)
    task.verifier = make_verifier(seed=1, **overrides).requires_grad_(False).float()
    task.verifier.decoder.output_projection.weight[2] *= 4
    make = make_block if kind == "block" else make_causal
    return task.verifier, make(task, **options).float()


def decode(name: str, engine: Engine, controller: str, *batches: list[int]) -> Any:
    verifier, drafter = pair(name)
    generator = build_generator(
        verifier,
        None if controller == "none" else drafter,
        DICTIONARY,
        block_size=K,
        limits=GenerationLimits(max_len_b=20),
        controller=CONTROLLERS[controller](),
        head=HEAD,
        engines=Engines.both(engine),
    )
    results = (generator.generate([], make_batch(lengths)) for lengths in batches)
    return [hypothesis for batch in results for (hypothesis,) in batch]


@pytest.mark.parametrize(
    "name",
    [
        "all shared",
        "published drafter",
        pytest.param("learned positions", marks=pytest.mark.slow),
        pytest.param("no positions, narrow", marks=pytest.mark.slow),
    ],
)
def test_as_pytorch(name: str) -> None:
    """The tokens are the same, and scores as exact as float32.

    OpenVINO reuses the memory of a batch's encoder output for the next batch.
    """
    engine = OpenVinoEngine()
    for controller, batches in (("tree", ([6, 3, 9], [7, 12, 4], [5])), ("constant", ([17],))):
        expected = decode(name, EagerEngine(), controller, *batches)
        for results, reference in zip(
            decode(name, engine, controller, *batches), expected, strict=True
        ):
            assert results["tokens"].tolist() == reference["tokens"].tolist()
            assert results["accepted"] == reference["accepted"]
            scores = results["positional_scores"], reference["positional_scores"]
            torch.testing.assert_close(*scores, atol=1e-4, rtol=1e-4)


def inputs(
    step: VerifierStep, rows: int = 2, tokens: int = 3, cached: int = 4, source: int = 7
) -> tuple[Any, ...]:
    """Return inputs for new tokens after cached ones."""
    example = step.example(rows, others=source)
    layer, (_, _, table, memory, memory_mask) = step.layers[0], example
    width = cached + tokens
    past = torch.randn(len(step.layers), 2, rows, layer.heads, cached, layer.head_dim)
    positions = torch.arange(cached, width).expand(rows, -1).contiguous()
    ids = torch.randint(4, 10, (rows, tokens))
    mask = torch.zeros(rows, 1, tokens, width)
    return past, mask, ids, positions, table, torch.randn_like(memory), memory_mask


def test_another_tensor_in_the_same_memory() -> None:
    """It need not be set again, unlike a tensor elsewhere."""
    run, memory = OpenVinoEngine().prepare(TwoMatrices()), np.ones((2, 128), np.float32)
    for value in (1, 2):
        memory[:] = value
        assert run(torch.from_numpy(memory))[0][0, 0] == value
    assert run(torch.full((2, 128), 3.0))[0][0, 0] == 3
    # A tensor that is not contiguous is copied every time.
    across = torch.from_numpy(np.ones((128, 2), np.float32))
    for value in (4, 5):
        across[:] = value
        assert run(across.T)[0][0, 0] == value


def test_single_rows_are_compiled_for_four_numbers_of_tokens(own_cache: Path) -> None:
    """Cached positions and source tokens may be any number."""
    torch.manual_seed(0)
    step = VerifierStep(pair("all shared")[0])
    run = OpenVinoEngine().prepare(step)
    assert len(list(own_cache.iterdir())) == 1
    for cached, source in ((4, 7), (2, 9)):
        for tokens in (1, 2, 3, 4, 5, 1):
            tensors = inputs(step, 1, tokens, cached, source)
            for expected, actual in zip(step(*tensors), run(*tensors), strict=True):
                torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)
    assert len(list(own_cache.iterdir())) == 5


@pytest.mark.parametrize("name", ["encoder", "memory"])
def test_single_sources_are_compiled_for_four_lengths(name: str, own_cache: Path) -> None:
    """Several sources may have any lengths."""
    torch.manual_seed(0)
    verifier, _ = pair("all shared")
    step = (
        EncoderStep(verifier.encoder)
        if name == "encoder"
        else MemoryStep(VerifierStep(verifier).layers)
    )
    run = OpenVinoEngine().prepare(step)
    for rows, lengths, files in ((1, (3, 5, 4, 6, 7, 3), 5), (2, (3, 8), 5), (1, (9,), 5)):
        for tokens in lengths:
            tensors = tuple(torch.randn_like(x) for x in step.example(rows, tokens))
            torch.testing.assert_close(run(*tensors)[0], step(*tensors)[0], atol=1e-5, rtol=1e-4)
        assert len(list(own_cache.iterdir())) == files


def random_inputs(step: Step, rows: int, tokens: int) -> tuple[Any, ...]:
    return tuple(
        torch.randn_like(x) if x is not None and x.is_floating_point() else x
        for x in example_inputs(step, rows, tokens)
    )


def compiled_steps() -> list[Any]:
    """Return every step in every precision, for a single row and several.

    Most single rows, which are compiled for each length, are slow.
    """
    results = []
    for name, precision, rows in product(
        ("encoder", "memory", "verifier", "drafter"), ("float32", "bfloat16", "int8"), (1, 3)
    ):
        marks = [NEEDS_BFLOAT16] if precision == "bfloat16" else []
        if rows == 1 and (name, precision) != ("verifier", "int8"):
            marks.append(pytest.mark.slow)
        results.append(pytest.param(name, precision, rows, marks=marks))
    return results


@pytest.mark.parametrize(("name", "precision", "rows"), compiled_steps())
def test_every_step_is_right_in_every_precision(name: str, precision: str, rows: int) -> None:
    """This processor's kernels compute about what PyTorch does in float32."""
    torch.manual_seed(0)
    verifier, drafter = pair("all shared")
    cached = VerifierStep(verifier)
    steps: dict[str, Step] = {
        "encoder": EncoderStep(verifier.encoder),
        "memory": MemoryStep(cached.layers),
        "verifier": cached,
        "drafter": DrafterStep(drafter),
    }
    step = steps[name]
    run = OpenVinoEngine(precision).prepare(step)
    for tokens in (3, 5, 8):
        tensors = random_inputs(step, rows, tokens)
        results, expected = run(*tensors), step(*tensors)
        # The first result, and new keys and values; a drafter's candidates may swap.
        for index in (0, -1):
            error = results[index] - expected[index]
            assert error.norm() < 0.1 * expected[index].norm()


def test_one_row_that_is_compiled_wrongly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The model for all sizes runs it."""
    step = VerifierStep(pair("all shared")[0])
    run = OpenVinoEngine().prepare(step)
    monkeypatch.setattr(TracedStep, "is_near", lambda self, run, rows, tokens: rows > 1)
    tensors = inputs(step, 1)
    results, expected = run(*tensors)[0], step(*tensors)[0]
    torch.testing.assert_close(results, expected, atol=1e-5, rtol=1e-4)
    assert "cannot compile a step of one row (what it computes" in caplog.text


@pytest.mark.parametrize("fails", [True, False])
def test_missing_bfloat16_is_noticed(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenVINO refuses it, or silently computes in float32."""
    core = openvino_core.core()

    def compile_model(model: Any, device: str, options: dict[str, Any]) -> Any:
        if fails:
            raise RuntimeError("could not create a primitive descriptor")
        return core.compile_model(model, device, {"INFERENCE_PRECISION_HINT": "f32"})

    fake = SimpleNamespace(compile_model=compile_model)
    monkeypatch.setattr(openvino_core, "core", lambda: fake)
    assert not openvino_core.has_bfloat16.__wrapped__()


class TwoMatrices(Step):
    """One takes 128 numbers, the other 192."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x @ torch.eye(128, 192) @ torch.eye(192, 7),)

    def example(self) -> tuple[torch.Tensor]:
        return (torch.ones(2, 128),)


def test_int8_groups_are_as_wide_as_every_matrix_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made now, and read from its file, twice."""
    engine, results = OpenVinoEngine("int8"), []
    load = engine._core.import_model
    core = SimpleNamespace(
        compile_model=engine._core.compile_model,
        import_model=lambda *tensors: results.append(load(*tensors)) or results[-1],
    )
    monkeypatch.setattr(engine, "_core", core)
    for _ in range(2):
        (result,) = engine.prepare(TwoMatrices())(torch.ones(2, 128))
        assert result.allclose(torch.ones(2, 7), rtol=0.02)
    sizes = [int(model.get_property(WeightCompression.GROUP_SIZE)) for model in results]
    assert sizes == [64, 64, 64]


class Twice(Step):
    """A step that computes something else when it is compiled."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x * (2 if torch.jit.is_tracing() else 1),)

    def example(self) -> tuple[torch.Tensor]:
        return (torch.ones(2, 3),)


def test_what_is_compiled_wrongly_is_not_used(
    own_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(EngineError, match=r"Twice \(what it computes is not what PyTorch does\)"):
        OpenVinoEngine().prepare(Twice())
    before = torch.get_rng_state()
    run = OpenVinoEngine(fall_back=True).prepare(Twice())
    assert torch.equal(torch.get_rng_state(), before)
    assert run(torch.ones(2, 3))[0].eq(1).all()
    assert "torch runs it" in caplog.text
    assert not list(own_cache.glob("*"))


class Strange(Step):
    """A step that OpenVINO cannot compile."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.special.airy_ai(x),)

    def example(self) -> tuple[torch.Tensor | None, ...]:
        return (torch.ones(2),)


def test_an_option_that_openvino_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not documented, and may be gone: steps are compiled without it."""
    monkeypatch.setattr("specdec_plugins.engines.openvino.UNFUSED", {"NO_SUCH_OPTION": "x"})
    torch.manual_seed(0)
    step = VerifierStep(pair("all shared")[0])
    tensors = inputs(step)
    results, expected = OpenVinoEngine().prepare(step)(*tensors)[0], step(*tensors)[0]
    torch.testing.assert_close(results, expected, atol=1e-5, rtol=1e-4)


def test_a_step_that_cannot_be_compiled(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(EngineError, match="--engine openvino: cannot compile Strange"):
        OpenVinoEngine().prepare(Strange())
    run = OpenVinoEngine(fall_back=True).prepare(Strange())
    assert "openvino cannot compile Strange" in caplog.text
    assert torch.equal(run(torch.ones(2))[0], torch.special.airy_ai(torch.ones(2)))


def test_an_engine_is_what_runs_its_steps() -> None:
    """Only compiled steps are in int8."""
    pytest.importorskip("nncf", reason="the extra [int8] is not installed")
    engine, results = OpenVinoEngine("int8", fall_back=True), []
    for step in (Strange(), TwoMatrices()):
        engine.prepare(step)
        results.append((engine.name, engine.precision))
    assert results == [("eager", "float32"), ("openvino and eager", "int8 and float32")]
    engine = OpenVinoEngine("int8", fall_back=True)
    engine.prepare(TwoMatrices())
    assert (engine.name, engine.precision) == ("openvino", "int8")


@pytest.mark.slow
def test_nothing_is_sent() -> None:
    """A new process has not imported OpenVINO yet."""
    script = """
import socket, sys
def refuse(*args, **kwargs): raise AssertionError("a connection")
socket.socket.connect = refuse
import torch
from specdec_plugins.engines.openvino import OpenVinoEngine
from specdec_plugins.engines.step import Step
class Double(Step):
    def forward(self, x): return (x @ torch.ones(64, 64) * 2,)
    def example(self): return (torch.ones(2, 64),)
run = OpenVinoEngine("int8").prepare(Double())
print(run(torch.ones(1, 64))[0][0, 0].item())
print("openvino_telemetry" in sys.modules, "nncf" in sys.modules)
"""
    for imported in ("True", "False"):  # NNCF is for what was not compiled before
        done = run_program(sys.executable, "-c", script, status=0)
        assert done.stdout.split() == ["128.0", "False", imported]


def test_signal_handlers_outlive_engines() -> None:
    script = """
import os, signal, torch
from specdec_plugins.engines.openvino import OpenVinoEngine
from specdec_plugins.engines.step import Step
class Double(Step):
    def forward(self, x): return (2 * x,)
    def example(self): return (torch.ones(2, 64),)
engines = [OpenVinoEngine(), OpenVinoEngine()]
runs = [engine.prepare(Double()) for engine in engines]
while engines:
    del engines[0], runs[0]
signal.signal(signal.SIGUSR1, lambda *_: print("handled"))
os.kill(os.getpid(), signal.SIGUSR1)
"""
    assert run_program(sys.executable, "-c", script, status=0).stdout == "handled\n"


def test_inputs_that_were_filled_anew_are_read_again() -> None:
    """The engine reads them where they lie, and leaves them as they are."""
    torch.manual_seed(0)
    step = VerifierStep(pair("all shared")[0])
    run, tensors = OpenVinoEngine().prepare(step), inputs(step)
    for _ in range(3):
        for tensor in tensors[:4]:
            tensor.copy_(tensor.flip(-1) if tensor.dtype == torch.long else tensor + 0.5)
        before = copy.deepcopy(tensors)
        for expected, actual in zip(step(*before), run(*tensors), strict=True):
            torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)
        assert all(map(torch.equal, tensors, before))


def test_compiled_models_are_stored(own_cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    verifier, _ = pair("all shared")
    step = VerifierStep(verifier)
    tensors = inputs(step)
    threads = torch.get_num_threads()

    def run(model: VerifierStep) -> Any:
        caplog.clear()
        return OpenVinoEngine().prepare(model)(*tensors)[0].clone()

    first = run(step)
    # The user is warned once, before anything is compiled.
    assert [m for m in caplog.messages if "compiles the models" in m] == caplog.messages[:1]
    (file,) = own_cache.glob("*.bin")
    try:
        torch.set_num_threads(3 - min(threads, 2))  # A stored model serves any number of threads.
        torch.testing.assert_close(run(step), first)
        assert not caplog.text
    finally:
        torch.set_num_threads(threads)
    for content in (b"of another make", b""):
        file.write_bytes(content)
        assert torch.equal(run(step), first)
        assert len(file.read_bytes()) > 1000
    # Other weights are another file.
    other = copy.deepcopy(verifier)
    other.decoder.layers[0].fc1.weight.data[0, 0] += 1
    assert not torch.equal(run(VerifierStep(other)), first)
    assert len(list(own_cache.glob("*.bin"))) == 2


def test_threads_are_torchs_again_afterwards() -> None:
    """And meanwhile only where it has a step to run."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        engine = OpenVinoEngine(fall_back=True)
        with engine.running():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        engine.prepare(Strange())
        with engine.running():
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
