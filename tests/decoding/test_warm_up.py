"""Made-up sentences leave nothing behind but an engine that has met common sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from conftest import examples, make_batch
from controlled import HEAD, K, drafter, verifier
from hypothesis import given
from hypothesis import strategies as st
from scripted import DICTIONARY

from specdec_plugins.decoding.build import build_generator
from specdec_plugins.decoding.controllers.base import CONTROLLERS
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.warm_up import LONGEST, warm_up
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.engine import Engines
from specdec_plugins.engines.sizes import PaddedSizes
from specdec_plugins.engines.step import Run, Step

Shapes = set[tuple[Any, ...]]


class Noting(EagerEngine):
    """Padded steps, and the shapes that they were handed."""

    sizes = PaddedSizes()

    def __init__(self) -> None:
        super().__init__("float64")
        self.met: Shapes = set()

    def prepare(self, step: Step) -> Run:

        def run(*inputs: Any) -> Any:
            shapes = (None if x is None else tuple(x.shape) for x in inputs)
            self.met.add((type(step).__name__, *shapes))
            return step(*inputs)

        return run


def make(
    controller: str, engine: EagerEngine, given: Mapping[str, Any] | None = None, **limits: Any
) -> SpeculativeGenerator:
    return build_generator(
        verifier(),
        drafter("causal"),
        DICTIONARY,
        block_size=K,
        limits=GenerationLimits(**{"max_len_b": 20, **limits}),
        head=HEAD,
        engines=Engines.both(engine),
        controller=CONTROLLERS[controller](**(given or {})),
    )


def outputs(generator: SpeculativeGenerator) -> Any:
    found = generator.generate([], make_batch([5, 3], seed=7))
    return [(one["tokens"].tolist(), one["accepted"]) for (one,) in found]


UNPREPARED = sorted(name for name, kind in CONTROLLERS.items() if kind.real)


@examples(20)
@given(
    controller=st.sampled_from(UNPREPARED), rows=st.integers(1, 3), least=st.sampled_from([1, 6])
)
def test_nothing_stays_behind(controller: str, rows: int, least: int) -> None:
    limits = {"min_len": least, "max_len_b": 20}
    expected = outputs(make(controller, Noting(), **limits))
    warmed = make(controller, Noting(), **limits)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    assert warm_up(warmed, DICTIONARY, rows, 1024) > 0
    assert torch.equal(torch.get_rng_state(), state)
    assert warmed.limits == GenerationLimits(**limits)
    assert warmed.statistics.sentences == 0
    assert outputs(warmed) == expected


def test_common_sizes_are_met() -> None:
    engine = Noting()
    generator = make("constant", engine)
    warm_up(generator, DICTIONARY, 1, 1024)
    before = set(engine.met)
    sources = {
        shapes[1][1] for shapes in before if shapes[0] == "EncoderStep" and shapes[1] is not None
    }
    assert sources == {engine.sizes.source(tokens) for tokens in range(1, LONGEST + 1)}
    generator.generate([], make_batch([4], seed=1))
    first = {shapes for shapes in engine.met if shapes[0] == "EncoderStep"}
    assert first <= before
