"""Compiling what is too small for tensors. No fairseq in here."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar, cast

import numba

# At DEBUG it tells all that it compiles, line by line.
logging.getLogger("numba").setLevel(logging.WARNING)


Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """A function of numbers and arrays, compiled at its first call and then kept on disk: beside
    its module or in the user's cache folder, or where numba's ``NUMBA_CACHE_DIR`` says.
    """
    try:
        made: object = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:
        # None of these can be written to: each process compiles for itself.
        made = numba.njit(nogil=True)(function)
    # To its callers it is the function that was written.
    return cast(Function, made)
