"""ONNX Runtime gives what PyTorch gives, as far as its precision goes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_batch, make_task, make_verifier
from fairseq.models.transformer import TransformerModelBase
from helpers.decoding.controlled import HEAD
from helpers.decoding.scripted import DICTIONARY
from helpers.models.drafters import make_block, make_causal

from specdec_plugins.decoding.build import build_generator
from specdec_plugins.decoding.controllers.base import CONTROLLERS
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.step_result import Hypothesis
from specdec_plugins.decoding.steps.drafter import DrafterStep
from specdec_plugins.decoding.steps.encoder import EncoderStep, MemoryStep
from specdec_plugins.decoding.steps.verifier import VerifierStep
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.engine import Engine, Engines
from specdec_plugins.engines.exported_step import ExportedStep
from specdec_plugins.engines.int8_products import weight_bits
from specdec_plugins.engines.onnxruntime import OnnxRuntimeEngine
from specdec_plugins.engines.step import Step
from specdec_plugins.files.errors import EngineError
from specdec_plugins.models.drafter import Drafter
from specdec_plugins.models.layers import Projection

onnx, _ = (
    pytest.importorskip(library, reason="the extra [int8] is not installed")
    for library in ("onnx", "onnxruntime")
)

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


@cache
def pair(name: str) -> tuple[TransformerModelBase, Drafter]:
    overrides, kind, options = PAIRS[name]
    task = make_task(block_size=K)
    task.verifier = make_verifier(seed=1, **overrides).requires_grad_(False).float()
    task.verifier.decoder.output_projection.weight[2] *= 4
    make = make_block if kind == "block" else make_causal
    return task.verifier, make(task, **options).float()


def decode(name: str, engine: Engine, controller: str, *batches: list[int]) -> list[Hypothesis]:
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


class TwoMatrices(Step):
    """One takes 128 numbers, the other 192."""

    first, second = torch.eye(128, 192), torch.eye(192, 7)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x @ self.first @ self.second,)

    def example(self, *sizes: int) -> tuple[torch.Tensor]:
        return (torch.ones(2, 128),)


class Twice(Step):
    """A step that computes something else when it is exported."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x * (2 if torch.onnx.is_in_onnx_export() else 1),)

    def example(self, *sizes: int) -> tuple[torch.Tensor]:
        return (torch.ones(2, 3),)


class Strange(Step):
    """A step that cannot be exported."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.special.airy_ai(x),)

    def example(self, *sizes: int) -> tuple[torch.Tensor | None, ...]:
        return (torch.ones(2),)


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
    """The tokens are the same, and scores as exact as float32."""
    compiled = OnnxRuntimeEngine()
    for controller, batches in (("tree", ([6, 3, 9], [7, 12, 4], [5])), ("constant", ([17],))):
        expected = decode(name, EagerEngine(), controller, *batches)
        for results, reference in zip(
            decode(name, compiled, controller, *batches), expected, strict=True
        ):
            assert results["tokens"].tolist() == reference["tokens"].tolist()
            assert results["accepted"] == reference["accepted"]
            scores = results["positional_scores"], reference["positional_scores"]
            torch.testing.assert_close(*scores, atol=1e-4, rtol=1e-4)


def test_another_tensor_in_the_same_memory() -> None:
    """It need not be set again, unlike a tensor elsewhere."""
    run, memory = OnnxRuntimeEngine().prepare(TwoMatrices()), np.ones((2, 128), np.float32)
    for value in (1, 2):
        memory[:] = value
        assert run(torch.from_numpy(memory))[0][0, 0] == value
    assert run(torch.full((2, 128), 3.0))[0][0, 0] == 3
    # A tensor that is not contiguous is copied every time.
    across = torch.from_numpy(np.ones((128, 2), np.float32))
    for value in (4, 5):
        across[:] = value
        assert run(across.T)[0][0, 0] == value


def test_inputs_that_were_filled_anew_are_read_again() -> None:
    """The engine reads them where they lie, writes to the cache, and leaves the rest alone."""
    torch.manual_seed(0)
    verifier, _ = pair("all shared")
    run, step = OnnxRuntimeEngine().prepare(VerifierStep(verifier)), VerifierStep(verifier)
    tensors = step.example(2, 3, 7)
    for _ in range(3):
        for tensor in (tensors[0], *tensors[2:5]):
            tensor.copy_(tensor.flip(-1) if tensor.dtype == torch.long else tensor + 0.5)
        before = copy.deepcopy(tensors)
        for expected, actual in zip(step(*before), run(*tensors), strict=True):
            torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(tensors[0], before[0], atol=1e-5, rtol=1e-4)
        assert all(map(torch.equal, tensors[1:], before[1:]))


def test_threads_are_torchs_again_afterwards() -> None:
    """And meanwhile only where it has a step to run."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        compiled = OnnxRuntimeEngine(fall_back=True)
        with compiled.running():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        compiled.prepare(Strange())
        with compiled.running():
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_tables_are_not_part_of_the_model() -> None:
    verifier, drafter = pair("all shared")
    for step in (VerifierStep(verifier), DrafterStep(drafter)):
        exported = ExportedStep(step)
        tensors = onnx.load_from_string(exported.export()).graph.initializer
        shapes = {tuple(tensor.dims) for tensor in tensors}
        assert not shapes.intersection(tuple(x.shape) for x in exported.lookups.values())


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("name", ["encoder", "memory", "verifier", "drafter"])
@torch.no_grad()
def test_every_step_is_right_in_every_precision(name: str, precision: str, rows: int) -> None:
    """This processor's kernels compute about what PyTorch does in float32."""
    torch.manual_seed(0)
    verifier, drafter = pair("all shared")
    steps: dict[str, Callable[[], Step]] = {
        "encoder": lambda: EncoderStep(verifier.encoder),
        "memory": lambda: MemoryStep(VerifierStep(verifier).layers),
        "verifier": lambda: VerifierStep(verifier),
        "drafter": lambda: DrafterStep(drafter),
    }
    step, tolerated = steps[name](), 0.1 if precision == "int8" else 1e-5
    run = OnnxRuntimeEngine(precision).prepare(steps[name]())
    # The last are the smallest: a source of one token, and a drafter's block of one slot, in which
    # no slot follows another.
    smallest = (2, 5) if name == "drafter" else (1, 1)
    for tokens, others in ((3, 7), (5, 7), (8, 7), smallest):
        tensors = tuple(
            torch.randn_like(x) if x is not None and x.is_floating_point() else x
            for x in step.example(rows, tokens, others)
        )
        cache = copy.deepcopy(tensors[0])
        results, expected = run(*tensors), step(cache, *tensors[1:])
        assert [x.shape for x in results] == [x.shape for x in expected]
        # The first result, and new keys and values; a drafter's candidates may swap.
        for found, right in ((results[0], expected[0]), (tensors[0], cache)):
            assert (found - right).norm() < tolerated * right.norm()


@torch.no_grad()
@pytest.mark.parametrize("name", ["encoder", "memory"])
def test_sources_are_more_exact_token_by_token(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    # Post-norm: its layers read what it is given.
    verifier = make_verifier(make_task(), seed=5).float()
    x = torch.randn(1, 30, verifier.encoder.embed_tokens.embedding_dim)
    x *= torch.logspace(-2, 2, 30)[:, None]
    errors = []
    for _ in range(2):
        step: Step = EncoderStep(verifier.encoder)
        inputs: tuple[Any, ...] = (x, torch.zeros(1, 1, 1, 30))
        if name == "memory":
            step = MemoryStep(VerifierStep(verifier).layers)
            inputs = (x.transpose(0, 1),)
        (expected,) = step(*inputs)
        (found,) = OnnxRuntimeEngine("int8").prepare(step)(*inputs)
        errors.append(((found - expected).norm(dim=-1) / expected.norm(dim=-1)).mean())
        monkeypatch.setattr(type(step), "by_token", False)
    assert errors[0] < 0.3 * errors[1]


class Slices(Step):
    """Two inputs and three results, each of which may be empty."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x + 1, x[:, 1:] * 2, y * 3)

    def example(self, rows: int, tokens: int, others: int) -> tuple[torch.Tensor, ...]:
        return torch.ones(rows, tokens), torch.ones(rows, others)


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_inputs_and_results_may_be_empty(rows: int) -> None:
    run, step = OnnxRuntimeEngine().prepare(Slices()), Slices()
    for tokens, others in ((1, 0), (3, 2), (1, 1), (2, 0), (1, 0)):
        x, y = (torch.rand(rows, size) for size in (tokens, others))
        for found, right in zip(run(x, y), step(x, y), strict=True):
            assert found.shape == right.shape
            torch.testing.assert_close(found, right)


class OneProduct(Step):
    """A projection and its residual, whose input is quantised token by token, or at once."""

    def __init__(self, by_token: bool) -> None:
        super().__init__()
        self.by_token = by_token
        generator = torch.Generator().manual_seed(3)
        weight, bias = (torch.randn(*size, generator=generator) for size in ((32, 32), (32,)))
        self.projections = [Projection(weight, bias, relu=True)]

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x + self.projections[0](x),)

    def example(self, rows: int, tokens: int, others: int) -> tuple[torch.Tensor]:
        return (torch.ones(rows, tokens, 32),)


@pytest.mark.parametrize("by_token", [False, True])
def test_a_small_token_beside_a_large_one(by_token: bool) -> None:
    """In int8 it disappears, unless it has a scale of its own; zeros stay zeros."""
    step = OneProduct(by_token)
    x = torch.randn(1, 3, 32, generator=torch.Generator().manual_seed(4))
    x *= torch.tensor([100.0, 0.1, 0.0])[:, None]
    (expected,) = step(x)
    (found,) = OnnxRuntimeEngine("int8").prepare(step)(x)
    errors = ((found - expected).norm(dim=-1) / (expected - x).norm(dim=-1))[0]
    assert errors[0] < 0.82
    assert (errors[1] < 0.01) == by_token
    assert errors[2] < 1e-6


def test_what_is_compiled_wrongly_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(EngineError, match=r"Twice \(what it computes is not what PyTorch does\)"):
        OnnxRuntimeEngine().prepare(Twice())
    before = torch.get_rng_state()
    run = OnnxRuntimeEngine(fall_back=True).prepare(Twice())
    assert torch.equal(torch.get_rng_state(), before)
    assert run(torch.ones(2, 3))[0].eq(1).all()
    assert "torch runs it" in caplog.text


def test_an_engine_is_what_runs_its_steps() -> None:
    """Only compiled steps are in int8; what cannot be compiled is refused, or PyTorch's."""
    with pytest.raises(EngineError, match="--engine onnxruntime: cannot compile Strange"):
        OnnxRuntimeEngine().prepare(Strange())
    compiled, results = OnnxRuntimeEngine("int8", fall_back=True), []
    for step in (Strange(), TwoMatrices()):
        run = compiled.prepare(step)
        results.append((compiled.name, compiled.precision))
        if isinstance(step, Strange):
            assert torch.equal(run(torch.ones(2))[0], torch.special.airy_ai(torch.ones(2)))
    both = "onnxruntime and eager", "int8 and float32"
    assert results == [("eager", "float32"), both]


@pytest.mark.parametrize(
    ("processor", "machine", "bits"),
    [
        ("AMD EPYC (avx2, L3 32 MiB)", "x86_64", 7),
        ("Xeon (avx512)", "AMD64", 7),
        ("Xeon (amx, avx512_vnni, avx512_bf16)", "x86_64", 8),
        ("Graviton (sve)", "aarch64", 8),
    ],
)
def test_weights_have_7_bits_where_products_saturate(
    processor: str, machine: str, bits: int
) -> None:
    assert weight_bits(processor, machine) == bits


def test_what_is_to_be_exact_is_not_rounded() -> None:
    step = OneProduct(by_token=True)
    step.exact = step.projections
    x = torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(4))
    expected = step(x)
    found = OnnxRuntimeEngine("int8").prepare(step)(x)
    torch.testing.assert_close(found, expected)


def test_runs_that_overlap_leave_torch_its_threads() -> None:
    """Two translators in two threads: the one that begins last ends last."""
    first, second = OnnxRuntimeEngine(), OnnxRuntimeEngine()
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
            stack.enter_context(first.running())
            other = second.running()
            pool.submit(other.__enter__).result()
            stack.close()
            assert torch.get_num_threads() == 3
            pool.submit(other.__exit__, None, None, None).result()
        with first.running():
            with second.running():
                assert torch.get_num_threads() == 1
            assert torch.get_num_threads() == 1
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.get_num_threads).result() == 3
    finally:
        torch.set_num_threads(before)
