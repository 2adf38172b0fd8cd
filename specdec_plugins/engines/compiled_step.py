"""Requests to a compiled model, called in place of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec_plugins.engines.compiled_files import Buffer
from specdec_plugins.engines.step import Results

if TYPE_CHECKING:
    import openvino

Array = NDArray[np.generic]


class Request:
    """A compiled step with its input and output buffers."""

    def __init__(
        self,
        tensor: type[openvino.Tensor],
        compiled: openvino.CompiledModel,
        parts: Sequence[int],
        content: Buffer,
    ) -> None:
        """
        Args:
            parts: how many of the model's inputs each input of the step fills.
            content: the memory from which the model reads its weights.

        Raises:
            RuntimeError: the model has more inputs or fewer.
        """
        if sum(parts) != len(compiled.inputs):
            raise RuntimeError(f"{len(compiled.inputs)} inputs in place of {sum(parts)}")
        self._compiled, self._content = compiled.create_infer_request(), content
        ends = list(accumulate(parts))
        self._inputs = [
            _Input(tensor, self._compiled, range(end - count, end))
            for end, count in zip(ends, parts)
        ]

    def run(self, inputs: Sequence[Tensor]) -> list[Array]:
        """Return the results, which the next run overwrites."""
        for target, x in zip(self._inputs, inputs, strict=True):
            if x is not target.last:
                target.set(x)
        return list(self._compiled.infer(share_outputs=True).values())


class _Input:
    """An input of a step, which a request reads in the caller's memory."""

    def __init__(
        self, tensor: type[openvino.Tensor], request: openvino.InferRequest, indices: range
    ) -> None:
        """``indices``: the request's inputs, one for each entry of the first two dimensions."""
        self._tensor, self._request, self._indices = tensor, request, indices
        self.last: Tensor | None = None
        """The tensor that is set; filled anew, it need not be set again."""
        self._memory: tuple[object, ...] = ()
        """The address, shape and strides of that tensor; :attr:`_parts` keep it alive."""

    def set(self, x: Tensor) -> None:
        """Let the request read ``x``."""
        memory = x.data_ptr(), x.shape, x.stride()
        if memory != self._memory:
            self.last, self._memory = None, ()
            entries = x.flatten(0, 1) if len(self._indices) > 1 else [x]
            self._parts = [entry.contiguous() for entry in entries]
            for index, part in zip(self._indices, self._parts):
                shared = self._tensor(part.numpy(), shared_memory=True)
                self._request.set_input_tensor(index, shared)
            if self._parts[0].data_ptr() != x.data_ptr():
                return  # They are copies.
        self.last, self._memory = x, memory


class CompiledStep:
    """A step's requests, one for each of the first few numbers of tokens.

    A request that meets another number of tokens loses half a step's time.
    """

    def __init__(
        self, request: Callable[[int], Request], transient: int, max_requests: int = 4
    ) -> None:
        """
        Args:
            request: makes a request for rows of this many tokens.
            transient: the step's attribute.
        """
        self._request: Callable[[int], Request] | None = request
        self._transient, self._max = transient, max_requests
        self._requests: dict[int, Request] = {}

    def __call__(self, *inputs: Tensor | None, tokens: int = 0) -> Results:
        """Return the results for rows of this many tokens."""
        return self.copied(self.run(*inputs, tokens=tokens))

    def run(self, *inputs: Tensor | None, tokens: int) -> list[Array]:
        """Return the results, which the next run overwrites."""
        if tokens not in self._requests:
            if self._request is None:
                tokens = next(reversed(self._requests))
            else:
                self._requests[tokens] = self._request(tokens)
                if len(self._requests) == self._max:
                    self._request = None  # and release the uncompiled model
        return self._requests[tokens].run([x for x in inputs if x is not None])

    def copied(self, results: Sequence[Array]) -> Results:
        """Copy the results of a run, except the transient ones."""
        return tuple(
            torch.from_numpy(array if index < self._transient else array.copy())
            for index, array in enumerate(results)
        )

    def takes(self, tokens: int) -> bool:
        """Return whether a request for this many tokens exists or can be made."""
        return tokens in self._requests or self._request is not None


class _ByRows:
    """A step for any number of rows, and the same step for a single row.

    After the first batch of several rows, single rows are no longer worth compiling for.
    """

    def __init__(self, several: CompiledStep, single: CompiledStep) -> None:
        self._several, self._single = several, single
        self._only_single = True

    def _step(self, rows: int, tokens: int) -> CompiledStep:
        self._only_single &= rows == 1
        return self._single if self._only_single and self._single.takes(tokens) else self._several


class CompiledSourceStep(_ByRows):
    """A compiled :class:`SourceStep`."""

    def __init__(
        self, several: CompiledStep, single: CompiledStep, rows_at: int, tokens_at: int
    ) -> None:
        super().__init__(several, single)
        self._at = rows_at, tokens_at

    def __call__(self, x: Tensor, *inputs: Tensor | None) -> Results:
        rows, tokens = (x.size(dimension) for dimension in self._at)
        return self._step(rows, tokens)(x, *inputs, tokens=tokens)


class CompiledCachedStep(_ByRows):
    """A compiled :class:`CachedStep`."""

    def __call__(self, past: Tensor, mask: Tensor, *inputs: Tensor | None) -> Results:
        tokens = mask.size(2)
        step = self._step(past.size(2), tokens)
        *results, new = step.run(past, mask, *inputs, tokens=tokens)
        return (*step.copied(results), torch.from_numpy(new))
