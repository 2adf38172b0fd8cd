"""Requests to models that OpenVINO has compiled, called in place of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec_plugins.engines.compiled import CompiledInput
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
    ) -> None:
        """
        Args:
            parts: how many of the model's inputs each input of the step fills.

        Raises:
            RuntimeError: the model has more inputs or fewer.
        """
        if sum(parts) != len(compiled.inputs):
            raise RuntimeError(f"{len(compiled.inputs)} inputs in place of {sum(parts)}")
        self._request, self._tensor = compiled.create_infer_request(), tensor
        self._inputs = [
            CompiledInput(count, partial(self._bind, end - count))
            for count, end in zip(parts, accumulate(parts))
        ]

    def _bind(self, first: int, index: int, part: Tensor) -> None:
        shared = self._tensor(part.numpy(), shared_memory=True)
        self._request.set_input_tensor(first + index, shared)

    def run(self, inputs: Sequence[Tensor]) -> list[Array]:
        """Return the results, which the next run overwrites."""
        for target, x in zip(self._inputs, inputs, strict=True):
            target.set(x)
        return list(self._request.infer(share_outputs=True).values())

    def checked(self, *inputs: Tensor | None) -> Results:
        """Run it, called like the step."""
        return tuple(map(torch.from_numpy, self.run([x for x in inputs if x is not None])))


class Requests:
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

    def __init__(self, several: Requests, single: Requests) -> None:
        self._several, self._single = several, single
        self._only_single = True

    def _step(self, rows: int, tokens: int) -> Requests:
        self._only_single &= rows == 1
        return self._single if self._only_single and self._single.takes(tokens) else self._several


class SourceRequests(_ByRows):
    """A compiled :class:`SourceStep`."""

    def __init__(self, several: Requests, single: Requests, rows_at: int, tokens_at: int) -> None:
        super().__init__(several, single)
        self._at = rows_at, tokens_at

    def __call__(self, x: Tensor, *inputs: Tensor | None) -> Results:
        rows, tokens = (x.size(dimension) for dimension in self._at)
        return self._step(rows, tokens)(x, *inputs, tokens=tokens)


class CachedRequests(_ByRows):
    """A compiled :class:`CachedStep`."""

    def __call__(self, past: Tensor, mask: Tensor, *inputs: Tensor | None) -> Results:
        tokens = mask.size(2)
        step = self._step(past.size(2), tokens)
        *results, new = step.run(past, mask, *inputs, tokens=tokens)
        return (*step.copied(results), torch.from_numpy(new))
