"""Compiling what is too small for tensors. No fairseq in here."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numba

# At DEBUG it tells all that it compiles, line by line.
logging.getLogger("numba").setLevel(logging.WARNING)


def compiled(function: Callable[..., Any]) -> Any:
    """A function of numbers and arrays, compiled at its first call and then kept on disk: beside
    its module or in the user's cache folder, or where numba's ``NUMBA_CACHE_DIR`` says.
    """
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:
        # None of these can be written to: each process compiles for itself.
        return numba.njit(nogil=True)(function)
