"""Building models without memory, to learn the shapes of their weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


@contextmanager
def without_memory() -> Iterator[None]:
    """Give what is built in here no memory, whatever its size.

    Nor are values worked out that nobody will have: for some that are usual torch would import its
    compiler, which takes seconds and 60 MiB.
    """
    stock = SinusoidalPositionalEmbedding.get_embedding
    SinusoidalPositionalEmbedding.get_embedding = staticmethod(_empty_table)
    try:
        with torch.device("meta"), _Undrawn():
            yield
    finally:
        SinusoidalPositionalEmbedding.get_embedding = staticmethod(stock)


def _empty_table(entries: int, channels: int, padding: int | None = None) -> Tensor:
    """The shape of a table of positions."""
    return torch.empty(entries, channels)


class _Undrawn(TorchFunctionMode):
    """Leaves normally distributed weights undrawn."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if func in (nn.init.normal_, Tensor.normal_):
            return args[0] if args else given["tensor"]
        return func(*args, **given)
