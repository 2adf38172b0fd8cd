"""Running what OpenVINO compiled, in place of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec_plugins.engines.step import Results

if TYPE_CHECKING:
    import openvino

Array = NDArray[np.generic]


class Request:
    """A compiled step, and what it reads and writes."""

    def __init__(
        self,
        tensor: type[openvino.Tensor],
        compiled: openvino.CompiledModel,
        parts: Sequence[int],
        content: memoryview,
    ) -> None:
        """
        Args:
            parts: for each input of the step, how many inputs of the compiled model it fills.
            content: what the model was made from, and reads.

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
        """Return the results, which the next run writes over."""
        for place, x in zip(self._inputs, inputs, strict=True):
            if x is not place.last:
                place.hand(x)
        return list(self._compiled.infer(share_outputs=True).values())


class _Input:
    """An input of a step, which a request reads where it lies."""

    def __init__(
        self, tensor: type[openvino.Tensor], request: openvino.InferRequest, places: range
    ) -> None:
        """``places``: among the request's inputs. Of several each is one entry of the input's
        first two dimensions."""
        self._tensor, self._request, self._places = tensor, request, places
        self.last: Tensor | None = None
        """What it reads where it lies, and need not be handed again: it may have been filled anew,
        which costs less than to hand over another tensor."""
        self._where: tuple[object, ...] = ()
        """Its memory, which :attr:`_parts` keep from being another's."""

    def hand(self, x: Tensor) -> None:
        """Let the request read ``x``."""
        where = x.data_ptr(), x.shape, x.stride()
        if where != self._where:
            self.last, self._where = None, ()
            entries = x.flatten(0, 1) if len(self._places) > 1 else [x]
            self._parts = [entry.contiguous() for entry in entries]
            for place, part in zip(self._places, self._parts):
                shared = self._tensor(part.numpy(), shared_memory=True)
                self._request.set_input_tensor(place, shared)
            if self._parts[0].data_ptr() != x.data_ptr():
                return  # They are copies.
        self.last, self._where = x, where


class CompiledStep:
    """What is called in place of a step.

    Where the number of tokens changes from one run to the next, OpenVINO loses as much time as half
    a step takes: each of the first few numbers has a request of its own, and the weights once more.
    """

    MOST = 4
    """The most requests that are kept."""

    def __init__(self, request: Callable[[int], Request], transient: int, most: int = MOST) -> None:
        """
        Args:
            request: makes one, for rows of so many tokens.
            transient: as of the step.
            most: how many are made.
        """
        self._request: Callable[[int], Request] | None = request
        self._transient, self._most = transient, most
        self._requests: dict[int, Request] = {}

    def __call__(self, *inputs: Tensor | None, tokens: int = 0) -> Results:
        """``tokens``: how many a row has."""
        return self.kept(self.run(*inputs, tokens=tokens))

    def run(self, *inputs: Tensor | None, tokens: int) -> list[Array]:
        """Return the results, which the next run writes over."""
        return self._request_for(tokens).run([x for x in inputs if x is not None])

    def kept(self, results: Sequence[Array]) -> Results:
        """Return the first results of a run, of which only the transient ones are written over."""
        return tuple(
            torch.from_numpy(array if place < self._transient else array.copy())
            for place, array in enumerate(results)
        )

    def has_one(self, tokens: int) -> bool:
        """Return whether there is a request for so many tokens, or can be."""
        return tokens in self._requests or self._request is not None

    def _request_for(self, tokens: int) -> Request:
        if tokens not in self._requests:
            if self._request is None:
                tokens = next(reversed(self._requests))
            else:
                self._requests[tokens] = self._request(tokens)
                if len(self._requests) == self._most:
                    self._request = None  # and let go of what they are made from
        return self._requests[tokens]


class _ByRows:
    """What is called in place of a step that one row has to itself more often than not."""

    def __init__(self, several: CompiledStep, one: CompiledStep) -> None:
        """
        Args:
            several: for any number of rows.
            one: for one row, of numbers of tokens that it has a request for. It is left alone once
                there have been several rows, the last of which is not worth compiling for.
        """
        self._several, self._one = several, one
        self._always_one = True

    def _step(self, rows: int, tokens: int) -> CompiledStep:
        self._always_one &= rows == 1
        return self._one if self._always_one and self._one.has_one(tokens) else self._several


class CompiledSourceStep(_ByRows):
    """What is called in place of a step over sources."""

    def __init__(
        self, several: CompiledStep, one: CompiledStep, rows_at: int, tokens_at: int
    ) -> None:
        """``rows_at``, ``tokens_at``: as of the step."""
        super().__init__(several, one)
        self._at = rows_at, tokens_at

    def __call__(self, x: Tensor, *inputs: Tensor | None) -> Results:
        rows, tokens = (x.size(dimension) for dimension in self._at)
        return self._step(rows, tokens)(x, *inputs, tokens=tokens)


class CompiledCachedStep(_ByRows):
    """What is called in place of a functional step."""

    def __call__(self, past: Tensor, mask: Tensor, *inputs: Tensor | None) -> Results:
        tokens = mask.size(2)
        step = self._step(past.size(2), tokens)
        *results, new = step.run(past, mask, *inputs, tokens=tokens)
        return (*step.kept(results), torch.from_numpy(new))
