"""A step as OpenVINO is given it: traced, with keys and values by layer. No fairseq in here."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from specdec_plugins.engines.step import CachedStep, Results, SourceStep, Step

Pairs = list[tuple[Tensor, Tensor]]
"""Keys and values, of each layer."""
Inputs = tuple[Tensor | None, ...]
Shapes = list[list[int]]
"""The shapes of all inputs; -1 where a size may be any."""
TOLERATED = 0.5
"""Relative error: int8 stays below 0.1, a kernel that is wrong on a processor is near 1 or
above."""


class TracedStep:
    """A step's graph. Where keys and values of all layers are an input of the step, the graph has
    one for each: to split them takes as long as to attend."""

    def __init__(self, step: Step) -> None:
        _unshare(step)
        self._step = step
        self._by_layer: Collection[int] = ()
        if isinstance(step, CachedStep):
            self._by_layer = 0, 2 + step.memory_at
        example = example_inputs(step)
        inputs = self._split(example)
        self.parts = list(map(len, inputs))
        """The number of inputs of the graph for each input of the step that there is."""
        given = _Given(step, example, self._by_layer)
        with torch.no_grad():
            self.graph = _traced(given.eval(), tuple(chain.from_iterable(inputs)))

    def shapes(self, rows: int, tokens: int) -> Shapes:
        """Return the shapes of the inputs, for so many new tokens in so many rows of a cached step,
        or so many source tokens."""
        one, other = (
            chain.from_iterable(self._split(example_inputs(self._step, rows, tokens, others)))
            for others in (7, 8)
        )
        return [
            [size if size == another else -1 for size, another in zip(x.shape, y.shape)]
            for x, y in zip(one, other, strict=True)
        ]

    def is_near(
        self, run: Callable[[list[Tensor]], Sequence[NDArray[np.generic]]], rows: int, tokens: int
    ) -> bool:
        """Return whether what was compiled gives about what torch does, of random inputs: of their
        first results the difference is at most :data:`TOLERATED` of the norm.

        Args:
            run: takes the inputs that there are, and returns arrays.
            rows, tokens: as of :meth:`shapes`, where the step has such inputs.
        """
        example = example_inputs(self._step, rows, tokens)
        # Their own, so that what is drawn elsewhere stays what it is.
        generator = torch.Generator().manual_seed(0)
        inputs = [
            torch.randn(x.shape, generator=generator) if x.is_floating_point() else x
            for x in example
            if x is not None
        ]
        given = iter(inputs)
        with torch.no_grad():
            expected = self._step(*(None if x is None else next(given) for x in example))[0]
        difference = torch.from_numpy(run(inputs)[0]) - expected
        return bool(difference.norm() <= TOLERATED * expected.norm())  # Not if it is no number.

    def _split(self, inputs: Inputs) -> list[list[Tensor]]:
        return [
            list(x.flatten(0, 1)) if place in self._by_layer else [x]
            for place, x in enumerate(inputs)
            if x is not None
        ]


def example_inputs(step: Step, rows: int = 2, tokens: int = 5, others: int = 7) -> Inputs:
    """Example inputs of a step, or of what a cached one becomes; the sizes are for steps that have
    such."""
    if isinstance(step, SourceStep):
        return step.example(rows, tokens)
    if not isinstance(step, CachedStep):
        return step.example()
    layer, count, width = step.layers[0], len(step.layers), others + 2
    past = torch.zeros(count, 2, rows, layer.heads, width, layer.head_dim)
    mask = torch.zeros(rows, 1, tokens, width + tokens)
    return (past, mask, *step.example(rows, tokens, others))


def _unshare(step: Step) -> None:
    """Copy what is multiplied with where the same matrix is a table as well: OpenVINO would not
    pack it."""
    tables = {table.data_ptr() for table in step.lookups}
    for projection in step.projections:
        if projection.weight is not None and projection.weight.data_ptr() in tables:
            projection.weight = projection.weight.detach().clone()


def _traced(module: nn.Module, inputs: tuple[Tensor, ...]) -> torch.jit.ScriptModule:
    with warnings.catch_warnings():
        # That the number of layers, and of keys and values, stays what it is.
        warnings.simplefilter("ignore", torch.jit.TracerWarning)  # type: ignore[attr-defined]
        traced: torch.jit.ScriptModule = torch.jit.trace(  # type: ignore[no-untyped-call]
            module, inputs, check_trace=False
        )
    return traced


class _Given(nn.Module):
    """A module that is called without the inputs that there never are, and with keys and values of
    all layers one after another."""

    def __init__(self, module: nn.Module, example: Inputs, by_layer: Collection[int]) -> None:
        super().__init__()
        self.module = module
        self._layers = [
            None if x is None else len(x) if place in by_layer else 0
            for place, x in enumerate(example)
        ]

    def forward(self, *tensors: Tensor) -> Results:
        left = iter(tensors)
        return self.module(*(_taken(left, layers) for layers in self._layers))


def _taken(left: Iterator[Tensor], layers: int | None) -> Tensor | Pairs | None:
    """Return the next input: a pair of each of the layers, one tensor for none of them, or
    nothing."""
    if layers is None:
        return None
    return [(next(left), next(left)) for _ in range(layers)] if layers else next(left)
