"""Running what OpenVINO compiled, in place of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.engines.step import Results

Array = np.ndarray[Any, Any]


class Request:
    """A compiled step, and the buffers that it reads and writes."""

    def __init__(self, tensor: Any, compiled: Any) -> None:
        self._compiled = compiled.create_infer_request()
        count = len(compiled.inputs)
        self._inputs = [_Input(tensor, self._compiled, place) for place in range(count)]

    def run(self, inputs: Sequence[Tensor]) -> list[Array]:
        """The results, which the next run writes over."""
        for place, x in zip(self._inputs, inputs):
            place.hand(x)
        return list(self._compiled.infer(share_outputs=True).values())


class _Input:
    """An input of a request: a buffer that it reads, written again for each call. To hand over
    another buffer costs more than to copy what is handed over."""

    def __init__(self, tensor: Any, request: Any, place: int) -> None:
        self._tensor, self._request, self._place = tensor, request, place
        self._last: Tensor | None = None
        self._buffer = np.empty(0)

    def hand(self, x: Tensor) -> None:
        """Let the request read ``x``, which is not to change as long as it is handed over."""
        if x is self._last:
            return
        self._last, array = x, x.numpy()
        if array.shape == self._buffer.shape:
            np.copyto(self._buffer, array)
            return
        self._buffer = np.array(array, order="C")
        tensor = self._tensor(self._buffer, shared_memory=True)
        self._request.set_input_tensor(self._place, tensor)


class CompiledStep:
    """What is called in place of a step.

    Where the number of tokens changes from one run to the next, OpenVINO loses as much time as half
    a step takes: each of the first few numbers has a request of its own, and the weights once more.
    """

    MOST = 4

    def __init__(self, request: Callable[[], Request], transient: int, most: int = MOST) -> None:
        """
        Args:
            request: makes one.
            transient: as of the step.
            most: how many are made.
        """
        self._request: Callable[[], Request] | None = request
        self._transient, self._most = transient, most
        self._requests: dict[int, Request] = {}

    def __call__(self, *inputs: Tensor | None, tokens: int = 0) -> Results:
        """``tokens``: how many a row has."""
        given = [x for x in inputs if x is not None]
        found = self._request_for(tokens).run(given)
        return tuple(
            torch.from_numpy(array if place < self._transient else array.copy())
            for place, array in enumerate(found)
        )

    def _request_for(self, tokens: int) -> Request:
        if tokens not in self._requests:
            if self._request is None:
                tokens = next(reversed(self._requests))
            else:
                self._requests[tokens] = self._request()
                if len(self._requests) == self._most:
                    self._request = None  # and let go of what they are made from
        return self._requests[tokens]


class CompiledCachedStep:
    """What is called in place of a cached step."""

    def __init__(self, compiled: CompiledStep) -> None:
        self._compiled = compiled

    def __call__(self, cached: Tensor, mask: Tensor, *inputs: Tensor | None) -> Results:
        tokens = mask.size(2)
        width = cached.size(2) - tokens
        *results, new = self._compiled(cached[:, :, :width], mask, *inputs, tokens=tokens)
        cached[:, :, width:] = new
        return tuple(results)
