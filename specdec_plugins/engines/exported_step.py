"""Steps in the form that ONNX Runtime loads. No fairseq in here."""

from __future__ import annotations

import io
import warnings
from contextlib import ExitStack
from itertools import chain, product
from operator import attrgetter
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from specdec_plugins.engines.step import Results, Run, Step

#: Sizes, or of which input that is not None, at which axis, and how much less.
Shape = list[int | tuple[int, int, int]]


class ExportedStep:
    """A step as a module with an input for each layer's keys and values, since to split them in the
    graph would take as long as to attend; a cached step's last results replace those it caches."""

    def __init__(self, step: Step) -> None:
        self._step = step
        # Distinct sizes, so that each shape tells which sizes it has.
        self._first = step.example(2, 5, 11)
        self._second = step.example(3, 7, 14)
        #: The names of the model's inputs for each input of the step that is not None.
        self.names = [
            [f"i{i}_{j}" for j in range(len(parts))]
            for i, parts in enumerate(self._split(self._first))
        ]
        #: The names of the model's last results, which replace the first input.
        self.cached = [f"{name}_new" for name in self.names[0]] if step.by_layer else []
        #: The model's first inputs, which do not change.
        self.lookups = {name: attrgetter(name)(step).detach() for name in step.lookups}
        first = [x.shape for x in self._first if x is not None]
        second = [x.shape for x in self._second if x is not None]
        origins: dict[tuple[int, int], tuple[int, int, int]] = {}
        for less, (index, shapes) in product((0, 1), enumerate(zip(first, second))):
            for axis, (n, m) in enumerate(zip(*shapes)):
                origins.setdefault((n - less, m - less), (index, axis, less))
        #: The shape and type of each result.
        self.results: list[tuple[Shape, torch.dtype]] = []
        with torch.no_grad():
            results = zip(step(*self._first), step(*self._second), strict=True)
        for x, y in results:
            shape: Shape = [n if n == m else origins[n, m] for n, m in zip(x.shape, y.shape)]
            self.results.append((shape, x.dtype))

    def export(self) -> bytes:
        """Return the step as an ONNX model."""
        names = [*chain(*self.names)]
        first = chain(*self._split(self._first))
        second = chain(*self._split(self._second))
        changing = {
            name: [axis for axis in range(x.dim()) if x.size(axis) != y.size(axis)]
            for name, x, y in zip(names, first, second, strict=True)
        }
        outputs = {
            f"o{index}": [axis for axis, size in enumerate(shape) if not isinstance(size, int)]
            for index, (shape, _) in enumerate(self.results)
        }
        cached = {new: changing[name] for new, name in zip(self.cached, self.names[0])}
        changing |= outputs | cached
        inputs: list[Any] = [*self._first]
        for index in self._step.by_layer:
            inputs[index] = [list(pair) for pair in inputs[index]]
        file = io.BytesIO()
        # Shapes of the whole graph, which ONNX Runtime infers anyway, take a fifth of an export.
        whole = patch.object(torch._C, "_jit_pass_onnx_graph_shape_type_inference")
        with torch.no_grad(), whole, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's farewell to this exporter; numbers of layers
            torch.onnx.export(
                _Exportable(self._step).eval(),
                (list(self.lookups.values()), *inputs),
                file,  # type: ignore[arg-type]  # this exporter takes it
                input_names=[*self.lookups, *names],
                output_names=[*outputs, *self.cached],
                dynamic_axes={k: axes for k, axes in changing.items() if axes},
                opset_version=17,
                dynamo=False,
            )
        return file.getvalue()

    def check(self, run: Run, tolerated: float) -> None:
        """Compare a loaded step with PyTorch on random inputs: a kernel may be wrong.

        Args:
            run: the loaded step, called like the step.
            tolerated: relative error of the first results.
        """
        generator = torch.Generator().manual_seed(0)  # leaves the user's random numbers alone
        inputs = [*self._second]
        for index, x in enumerate(inputs):
            if x is not None and x.is_floating_point():
                inputs[index] = torch.randn(x.shape, generator=generator)
        with torch.no_grad():
            expected = self._step(*inputs)[0]
        difference = run(*inputs)[0] - expected
        if not difference.norm() <= tolerated * expected.norm():  # NaN, too
            raise RuntimeError("what it computes is not what PyTorch does")

    def _split(self, inputs: tuple[Tensor | None, ...]) -> list[list[Tensor]]:
        return [
            list(x.flatten(0, 1)) if index in self._step.by_layer else [x]
            for index, x in enumerate(inputs)
            if x is not None
        ]


class _Exportable(nn.Module):
    """A step with inputs for its lookups, and with results for the keys and values it caches."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.step = step

    def forward(
        self, lookups: list[Tensor], past: Tensor | list[list[Tensor]], *inputs: Tensor | None
    ) -> Results:
        with ExitStack() as stack:
            for name, table in zip(self.step.lookups, lookups):
                path, _, leaf = name.rpartition(".")
                owner = attrgetter(path)(self.step)
                # Found before a parameter of the same name.
                stack.enter_context(patch.dict(vars(owner), {leaf: table}))
            results: Results = self.step(past, *inputs)
        return (*results, *chain(*past)) if isinstance(past, list) else results
