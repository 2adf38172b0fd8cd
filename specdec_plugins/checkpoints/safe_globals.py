"""The allow-list of globals in a checkpoint's pickle, for every torch."""

from __future__ import annotations

import argparse
import codecs
import collections
import os
import pickle
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import omegaconf
import torch
from omegaconf.base import ContainerMetadata, Metadata

FORCE_WEIGHTS_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
FORCE_ANYTHING = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"


def register_safe_globals() -> None:
    """Allow the contents of fairseq's checkpoints in every restricted ``torch.load``.

    fairseq does not set ``weights_only``, and torch 2.6 and later then restrict reading: training
    could not be resumed, nor could ``fairseq-generate`` load a model.
    """
    known = torch.serialization.get_safe_globals()
    torch.serialization.add_safe_globals([g for g in safe_globals() if g not in known])


def force_weights_only() -> None:
    """Restrict fairseq's ``torch.load`` on torch 2.4 and 2.5, too, unless the user decided."""
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    if (major, minor) < (2, 6) and FORCE_ANYTHING not in os.environ:
        os.environ.setdefault(FORCE_WEIGHTS_ONLY, "1")


class _Dtype:
    """A stand-in for ``numpy.dtype``: plain numbers only."""

    def __init__(self, code: str, *_: object) -> None:
        if not re.fullmatch(r"[biufc]\d+", code):
            raise pickle.UnpicklingError(f"a numpy type that is not a number: {code}")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.dtype = self.dtype.newbyteorder(state[1])


class _Array(np.ndarray):
    """A stand-in for ``numpy.ndarray``; saved again, it is an ordinary array.

    The real class would take bytes for Python objects, that is, for any pointers.
    """

    def __new__(cls, *_: object) -> _Array:
        return super().__new__(cls, (0,), np.int8)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        version, shape, kind, fortran_order, data = state
        super().__setstate__((version, shape, kind.dtype, fortran_order, data))

    def __reduce__(self) -> str | tuple[object, ...]:
        return np.asarray(self).__reduce__()


def _rebuild_number(kind: _Dtype, data: bytes) -> np.generic:
    return np.frombuffer(data, kind.dtype, count=1)[0]


def _numpy_stand_ins() -> Iterator[Callable[..., object]]:
    """Yield stand-ins for numpy's classes and functions, under their names."""
    stand_ins: list[tuple[Callable[..., object], str]] = [
        (_Dtype, "numpy.dtype"),
        (_Array, "numpy.ndarray"),
    ]
    for module in ("numpy.core.multiarray", "numpy._core.multiarray"):  # numpy 1 and numpy 2
        stand_ins.append((lambda *_: _Array(), f"{module}._reconstruct"))
        stand_ins.append((lambda *args: _rebuild_number(*args), f"{module}.scalar"))
    for stand_in, name in stand_ins:
        stand_in.__module__, _, stand_in.__name__ = name.rpartition(".")
        stand_in.__qualname__ = stand_in.__name__
        yield stand_in


@lru_cache(maxsize=1)
def safe_globals() -> tuple[Any, ...]:
    """Return the allow-list: containers, nodes of configurations and numbers."""
    nodes = omegaconf.nodes
    return (
        argparse.Namespace,
        collections.OrderedDict,
        collections.defaultdict,
        Any,
        *(bool, bytes, dict, float, int, list, set, str, tuple),
        *(omegaconf.DictConfig, omegaconf.ListConfig, ContainerMetadata, Metadata),
        *(nodes.AnyNode, nodes.BooleanNode, nodes.FloatNode, nodes.IntegerNode, nodes.StringNode),
        codecs.encode,  # bytes are pickled as text and the name of its encoding
        *_numpy_stand_ins(),  # meters keep numpy values: BLEU's counts, for one
    )
