"""On a GPU that is emulated: nothing mixes devices, and what a step launches and waits for is
counted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from copy import deepcopy
from typing import Any

import pytest
import torch
from conftest import make_batch, thinned
from helpers.decoding.controlled import HEAD, K, drafter
from helpers.decoding.emulated import IS_HERE, LACKING, emulated, on_gpu, to_gpu
from helpers.decoding.recorded import SMALL, recorded
from helpers.decoding.scripted import DICTIONARY, traced
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from specdec_plugins.decoding.acceptance import RelaxedRule, StrictRule
from specdec_plugins.decoding.build import build_generator
from specdec_plugins.decoding.controllers.base import CONTROLLERS
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.resident.state import Kind, Shape
from specdec_plugins.decoding.resident.step import ResidentStep
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.engine import Engine, Engines, Replay
from specdec_plugins.host.fairseq_types import Sample
from specdec_plugins.models.drafter import Drafter

pytestmark = pytest.mark.skipif(not IS_HERE, reason=LACKING)


@pytest.fixture(scope="module")
def pair() -> tuple[Drafter, Drafter]:
    """A tiny drafter on the host, and the same there, each with its verifier."""
    here = drafter("causal, all shared")
    there = deepcopy(here)
    with emulated():
        on_gpu(there.verifier, there)
    return here, there


def make(model: Drafter, engine: Engine, controller: str, **given: Any) -> SpeculativeGenerator:
    limits = given.pop("limits", {})
    reuse = {"redraft_below": math.inf} if controller == "tree" else {}
    return build_generator(
        model.verifier,
        model,
        DICTIONARY,
        block_size=K,
        limits=GenerationLimits(**{"max_len_b": 12, **limits}),
        head=HEAD,
        controller=CONTROLLERS[controller](**reuse),
        engines=Engines.both(engine),
        **given,
    )


RULES = {"strict": StrictRule(), "relaxed": RelaxedRule(3, 2.0)}


CASES = [(name, False) for name in sorted(CONTROLLERS)]
CASES += [(name, True) for name in ("none", "constant", "tree", "confidence")]


@thinned(case=CASES, rule=RULES)
def test_every_controller_says_there_what_it_says_here(
    case: tuple[str, bool], rule: str, pair: tuple[Drafter, Drafter]
) -> None:
    """By the ordinary loop and by recorded steps."""
    controller, resident = case
    limits = {"unkpen": 0.5, "repetition_penalty": 1.2, "min_len": 2, "max_len_b": 8}
    batch, found = make_batch([5, 9], seed=3), []
    for model in pair:
        engine = recorded() if resident else EagerEngine("float64")
        with nullcontext() if model is pair[0] else emulated():
            generator = make(model, engine, controller, rule=RULES[rule], limits=limits)
            if controller == "constant" and not resident:
                traced(generator)
            given = batch if model is pair[0] else to_gpu(batch)
            found.append([h["tokens"].tolist() for (h,) in generator.generate([], given)])
        fallbacks = generator.engines.fallbacks
        assert bool(fallbacks) == (resident and not generator.controller.steady)
        assert all(f"--controller {controller} decides" in reason for reason in fallbacks)
    assert found[0] == found[1]


@pytest.mark.parametrize("controller", ["none", "constant", "tree"])
def test_the_host_waits_once_a_step(controller: str, pair: tuple[Drafter, Drafter]) -> None:
    """And once more a sentence for its source, of trees for the first lattice."""
    batch = to_gpu(make_batch([5]))
    with emulated() as emulation:
        generator = make(pair[1], recorded(), controller, limits={"min_len": 5})
        generator.generate([], batch)  # What is made once is made.
        emulation.counts.clear()
        generator.statistics = DecodingStatistics()
        generator.generate([], batch)
        waits, steps = emulation.counts["waits"], generator.statistics.steps
    assert steps > 1
    assert waits == emulation.counts["copies to host"] == steps + 1 + (controller == "tree")
    assert emulation.counts["copies to device"] == 0


def outputs_of(generator: SpeculativeGenerator, batch: Sample) -> list[list[int]]:
    return [best["tokens"].tolist() for (best,) in generator.generate([], batch)]


def test_sizes_are_few_and_bounded(pair: tuple[Drafter, Drafter]) -> None:
    """Lines of any length and batches of any size meet few, which are recorded once."""
    states: list[Any] = []

    def noting(part: Any) -> Replay:
        states.append(part.__self__.state)
        return part  # type: ignore[no-any-return]

    lines = [[3], [5, 9, 3], [20]]
    plain = make(pair[0], EagerEngine("float64"), "constant", limits={"min_len": 6})
    expected = [outputs_of(plain, make_batch(lengths)) for lengths in lines]
    with emulated():
        generator = make(pair[1], recorded(noting), "constant", limits={"min_len": 6})
        batches = [to_gpu(make_batch(lengths)) for lengths in lines]
        assert [outputs_of(generator, batch) for batch in batches] == expected
        first = len(states)
        assert [outputs_of(generator, batch) for batch in batches] == expected
    shapes = {(*state.source.shape, state.history.size(1)) for state in states}
    assert len(shapes) == first == len(states)
    rows, sources, widths = map(set, zip(*shapes))
    assert rows == {1, 2, 4}
    assert sources == {8, 16, 32}
    # The narrowest read sources.
    assert widths == {1 + K, 16, 32}


class Tape(TorchDispatchMode):
    """Operations, and the shapes, strides and numbers of what they are handed."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[object] = []

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: Any = (), kwargs: Any = None
    ) -> object:
        leaves = tree_leaves((args, kwargs))
        met = [(x.shape, x.stride(), x.dtype) if isinstance(x, torch.Tensor) else x for x in leaves]
        self.operations.append((str(func), met))
        return func(*args, **(kwargs or {}))


def buffers(step: ResidentStep) -> Iterator[torch.Tensor]:
    for holder in (step.state, step.outcome, step.tree):
        if holder is not None:
            yield from (x for x in vars(holder).values() if isinstance(x, torch.Tensor))


@pytest.mark.parametrize("kind", [Kind(), Kind(K), Kind(K, 8)], ids=["AR", "chain", "tree"])
def test_every_step_does_the_same_in_the_same_places(
    kind: Kind, pair: tuple[Drafter, Drafter]
) -> None:
    """Whatever there is in its buffers: sentences that have begun, grown and ended."""
    generator = make(pair[0], recorded(), "tree", rule=RelaxedRule(len(DICTIONARY), math.inf))
    resident = generator._resident
    assert resident is not None
    with torch.no_grad():
        step = resident.recorded(kind, Shape(2, SMALL.width * 2, SMALL.source))
        reader = resident.recorded(kind, Shape(2, 0, SMALL.source))
        step.run()  # What is made once is made.
        sources = make_batch([5, 4])["net_input"]["src_tokens"].tolist()
        reader.begin([(sources[0], 9), (sources[1], 4)])
        reader.run()
        reader.outcome.read()
        step.take(reader, [0, 1], [0, 1])
        places = [x.data_ptr() for x in buffers(step)]
        tapes, lengths = [], set()
        for _ in range(4):
            lengths.add(tuple(step.state.lengths.tolist()))
            if kind.nodes:
                step.grow()
            with Tape() as tape:
                step.run()
            step.outcome.read()
            tapes.append(tape.operations)
    assert all(tape == tapes[0] for tape in tapes)
    assert [x.data_ptr() for x in buffers(step)] == places
    assert len(lengths) > 1
    assert not any("_local_scalar" in name or "nonzero" in name for name, _ in tapes[0])
