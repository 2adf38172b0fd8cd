"""Steps in the form that is compiled. No fairseq in here."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator
from itertools import chain

import torch
from torch import Tensor, nn

from specdec_plugins.engines.step import CachedStep, Results, Run, SourceStep, Step

Pairs = list[tuple[Tensor, Tensor]]
"""Keys and values of each layer."""
Inputs = tuple[Tensor | None, ...]
Shapes = list[list[int]]
"""The shapes of all inputs; -1 stands for any size."""
TOLERATED = 0.5
"""Relative error. That of int8 stays below 0.1; a wrong kernel's is near 1 or above."""


class TracedStep:
    """A step as a module with an input for each layer's keys and values.

    To split them in the graph would take as long as to attend.
    """

    def __init__(self, step: Step) -> None:
        _unshare(step)
        self._step = step
        self._by_layer: Collection[int] = ()
        if isinstance(step, CachedStep):
            self._by_layer = 0, 2 + step.memory_at
        example = example_inputs(step)
        inputs = self._split(example)
        self.parts = list(map(len, inputs))
        """The number of the module's inputs for each input of the step."""
        self.example = list(chain.from_iterable(inputs))
        self.module = _Split(step, example, self._by_layer).eval()

    def graph(self) -> torch.jit.ScriptModule:
        """Trace the module."""
        with torch.no_grad(), warnings.catch_warnings():
            # The numbers of layers and of keys and values become constants.
            warnings.simplefilter("ignore", torch.jit.TracerWarning)  # type: ignore[attr-defined]
            return torch.jit.trace(  # type: ignore[no-untyped-call]
                self.module, tuple(self.example), check_trace=False
            )

    def shapes(self, rows: int, tokens: int) -> Shapes:
        """Return the shapes of the module's inputs, -1 where a size changes from call to call.

        Args:
            tokens: new tokens in a row of a cached step, else source tokens.
        """
        return self._shapes((rows, tokens, 7), (rows, tokens, 8))

    def any_shapes(self) -> Shapes:
        """Return the shapes of the module's inputs for any rows and tokens."""
        return self._shapes((2, 5, 7), (3, 6, 8))

    def _shapes(self, *sizes: tuple[int, int, int]) -> Shapes:
        first, second = (
            chain.from_iterable(self._split(example_inputs(self._step, *each))) for each in sizes
        )
        return [
            [size if size == other else -1 for size, other in zip(x.shape, y.shape)]
            for x, y in zip(first, second, strict=True)
        ]

    def check(self, run: Run, rows: int = 2, tokens: int = 5) -> None:
        """Compare a compiled step with PyTorch on random inputs: a kernel may be wrong.

        Args:
            run: the compiled step, called like the step.
            rows, tokens: as for :meth:`shapes`.

        Raises:
            RuntimeError: the first results' relative difference is above :data:`TOLERATED`.
        """
        generator = torch.Generator().manual_seed(0)  # leaves the user's random numbers alone
        inputs = [
            torch.randn(x.shape, generator=generator)
            if x is not None and x.is_floating_point()
            else x
            for x in example_inputs(self._step, rows, tokens)
        ]
        with torch.no_grad():
            expected = self._step(*inputs)[0]
        difference = run(*inputs)[0] - expected
        if not difference.norm() <= TOLERATED * expected.norm():  # NaN, too
            raise RuntimeError("what it computes is not what PyTorch does")

    def _split(self, inputs: Inputs) -> list[list[Tensor]]:
        return [
            list(x.flatten(0, 1)) if index in self._by_layer else [x]
            for index, x in enumerate(inputs)
            if x is not None
        ]


def example_inputs(step: Step, rows: int = 2, tokens: int = 5, others: int = 7) -> Inputs:
    """Return example inputs of any step's forward, of these sizes if it has such."""
    if isinstance(step, SourceStep):
        return step.example(rows, tokens)
    if not isinstance(step, CachedStep):
        return step.example()
    layer, count, width = step.layers[0], len(step.layers), others + 2
    past = torch.zeros(count, 2, rows, layer.heads, width, layer.head_dim)
    mask = torch.zeros(rows, 1, tokens, width + tokens)
    return (past, mask, *step.example(rows, tokens, others))


def _unshare(step: Step) -> None:
    """Copy matrices that are tables of embeddings, too: OpenVINO would not pack them."""
    tables = {table.data_ptr() for table in step.lookups}
    for projection in step.projections:
        if projection.weight is not None and projection.weight.data_ptr() in tables:
            projection.weight = projection.weight.detach().clone()


class _Split(nn.Module):
    """A step without the inputs that are None, and with each layer's keys and values."""

    def __init__(self, module: nn.Module, example: Inputs, by_layer: Collection[int]) -> None:
        super().__init__()
        self.module = module
        self._layers = [
            None if x is None else len(x) if index in by_layer else 0
            for index, x in enumerate(example)
        ]

    def forward(self, *tensors: Tensor) -> Results:
        rest = iter(tensors)
        return self.module(*(_next_input(rest, layers) for layers in self._layers))


def _next_input(rest: Iterator[Tensor], layers: int | None) -> Tensor | Pairs | None:
    """Return a pair for each of the layers, a tensor for 0 layers, or None."""
    if layers is None:
        return None
    return [(next(rest), next(rest)) for _ in range(layers)] if layers else next(rest)
